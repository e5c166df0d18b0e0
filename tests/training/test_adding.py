"""Classes added to a run: in the store and among the centres, with one call, and there after loading."""

from pathlib import Path

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.data import load_benchmark
from softtriple.errors import UserError
from softtriple.progress import Reporter
from softtriple.training import Run, train
from softtriple.training.adding import read_added
from softtriple.training.directory import RunDir

QUIET = Reporter(quiet=True)
MEANS = 4 * np.random.default_rng(0).standard_normal((8, 8))


def write_class(file: Path, *classes: int, seed: int = 0) -> str:
    noise = np.random.default_rng(seed).standard_normal((10 * len(classes), 8))
    vectors = MEANS[np.repeat(classes, 10)] + noise
    names = np.array([f"class {number}" for number in range(8)])
    np.savez(file, vectors=vectors.astype(np.float32), labels=np.repeat(classes, 10), class_names=names)
    return str(file)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that has trained on classes 0 to 3."""
    data = write_class(tmp_path / "data.npz", 0, 1, 2, 3, 4, 5)
    settings = ["train.epochs=2", "model.dim=6", "loss.centers_per_class=2", "data.test_share=0.34"]
    return train(data, out=tmp_path / "run", config=with_settings(Config(), settings), reporter=QUIET)


def predicted(run: Run, number: int) -> str:
    vectors = MEANS[[number]].astype(np.float32)
    label = run.loss.predict(torch.from_numpy(run.encoder.embed(vectors)))
    assert label is not None
    return run.encoder.class_names[int(label)]


def test_a_new_class_is_in_the_store_and_has_centres(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    before = run.centers()
    assert before is not None
    new = write_class(tmp_path / "new.npz", 6, 1)
    indexed = run.index(new, store, add_classes=True)
    assert (indexed.added, indexed.classes, indexed.added_classes) == (20, 2, 1)
    # A class that was added before is found again from its new items.
    assert run.index(write_class(tmp_path / "more.npz", 7, 6, seed=1), store, add_classes=True).added_classes == 2
    loaded = Run.load(tmp_path / "run")
    for each in (run, loaded):
        assert each.encoder.class_names == (*(f"class {number}" for number in (0, 1, 2, 3)), "class 6", "class 7")
        centers = each.centers()
        assert centers is not None
        assert centers.shape == (6, 2, 6)
        torch.testing.assert_close(centers[:4], before, rtol=0, atol=0)
        assert [predicted(each, number) for number in (0, 6, 7)] == ["class 0", "class 6", "class 7"]
    torch.testing.assert_close(run.centers(), loaded.centers())
    # It is found at once, and what training wrote is as it was.
    split = load_benchmark(new, split="none").test
    assert loaded.encoder.fingerprint() == run.encoder.fingerprint()
    assert len(split) == 20
    assert loaded.evaluate().recall == run.report.recall


def test_nothing_is_added_for_classes_that_were_trained(run: Run, tmp_path: Path) -> None:
    known = write_class(tmp_path / "known.npz", 0, 1)
    assert run.index(known, str(tmp_path / "store"), add_classes=True).added_classes == 0
    assert not RunDir(tmp_path / "run").added_file.exists()


def test_a_loss_without_centres_is_refused_before_a_store_is_made(tmp_path: Path) -> None:
    data = write_class(tmp_path / "data.npz", 0, 1, 2, 3)
    run = train(data, loss="semi-hard", epochs=0, dim=4, reporter=QUIET)
    with pytest.raises(UserError, match="SemiHardTripletLoss"):
        run.index(data, str(tmp_path / "store"), add_classes=True)
    assert not (tmp_path / "store").exists()


def test_a_damaged_file_is_named(run: Run, tmp_path: Path) -> None:
    from softtriple.models.weights import write_tensors

    directory = RunDir(tmp_path / "run")
    for tensors in ({"class x": torch.zeros(2, 5)}, {"other": torch.zeros(2, 6)}, {"class x": torch.zeros(6)}):
        write_tensors(directory.added_file, tensors)
        with pytest.raises(UserError, match=r"added\.safetensors"):
            read_added(directory, 6)
