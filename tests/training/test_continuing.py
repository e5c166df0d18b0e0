"""A run that starts from another: its weights, the centres of classes it knows, its settings."""

from pathlib import Path

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.errors import UserError
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.training import Run, train
from softtriple.training.continuing import continued_config
from softtriple.training.directory import RunDir

QUIET = Reporter(quiet=True)


def write_vectors(file: Path, names: str, width: int = 8) -> str:
    """Ten noisy vectors of each class; a class has the same mean in every file."""
    random = np.random.default_rng(0)
    means = np.random.default_rng(1).standard_normal((26, width))
    rows = np.array(["abcdefghijklmnopqrstuvwxyz".index(name) for name in names for _ in range(10)])
    vectors = means[rows] + 0.5 * random.standard_normal((len(rows), width))
    labels = np.repeat(np.arange(len(names)), 10)
    np.savez(file, vectors=vectors.astype(np.float32), labels=labels, class_names=np.array(list(names)))
    return str(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on classes a to h, of which it has trained on a to d."""
    folder = tmp_path_factory.mktemp("continuing")
    settings = ["train.epochs=2", "model.dim=4", "loss.centers_per_class=2", "train.lr=0.01"]
    data = write_vectors(folder / "old.npz", "abcdefgh")
    train(data, out=folder / "first", config=with_settings(Config(), settings), reporter=QUIET)
    return folder


def test_nothing_changes_without_steps(folder: Path) -> None:
    """Weights and centres of known classes are the first run's; only the centres of new classes are new."""
    data = write_vectors(folder / "more.npz", "abcdxyefghvw")
    first = Run.load(folder / "first")
    run = train(data, start=str(folder / "first"), epochs=0, test_share=0.5, reporter=QUIET)
    for name, tensor in first.encoder.state_dict().items():
        torch.testing.assert_close(run.encoder.state_dict()[name], tensor, rtol=0, atol=0)
    centers, known = run.centers(), first.centers()
    assert centers is not None
    assert known is not None
    assert run.encoder.class_names == tuple("abcdxy")
    torch.testing.assert_close(centers[:4], known, rtol=0, atol=0)
    vectors = torch.from_numpy(run.encoder.embed(np.load(data)["vectors"][40:60]))
    assert (run.loss.predict(vectors) == torch.tensor([4, 5]).repeat_interleave(10)).float().mean() > 0.7


def test_settings_come_from_the_run_unless_changed(folder: Path) -> None:
    config = continued_config(folder / "first", str(folder / "old.npz"))
    first = RunDir(folder / "first").read_config()
    assert (config.model, config.loss) == (first.model, first.loss)
    assert config.train.start == str(folder / "first")
    assert (config.train.lr, config.train.epochs) == (0.01, 2)
    data, changed = str(folder / "old.npz"), {"epochs": 3, "choose": "off"}
    run = train(data, start=folder / "first", out=folder / "second", reporter=QUIET, **changed)
    assert (len(run.log), run.config.train.lr) == (3, 0.01)
    # The baseline is the run as it was, on the same items.
    (before,) = run.baselines.values()
    assert before.recall == Run.load(folder / "first").report.recall
    # It can be resumed and loaded as any other.
    again = train(data, out=folder / "second", config=run.config, resume=True, reporter=QUIET)
    assert again.report.recall == run.report.recall
    assert Run.load(folder / "second").config.train.start == str(folder / "first")


def test_held_out_classes_keep_the_start_where_training_would_ruin_it(folder: Path, tmp_path: Path) -> None:
    """A learning rate of 100 forgets everything; that is seen on held-out classes, and the head stays as it was."""
    data, first = write_vectors(tmp_path / "other.npz", "ijklmnopqrst"), Run.load(folder / "first")
    run = train(data, start=folder / "first", epochs=5, lr=100.0, out=tmp_path / "run", reporter=QUIET)
    assert (run.config.train.stop_after, run.config.train.interpolate) == (0, 0.0)
    for name, tensor in first.encoder.state_dict().items():
        torch.testing.assert_close(run.encoder.state_dict()[name], tensor, rtol=0, atol=0)
    (before,) = run.baselines.values()
    assert run.report.recall == before.recall


def test_lists_of_corrections_apply_to_the_same_data_only(folder: Path, tmp_path: Path) -> None:
    exclude = tmp_path / "exclude.csv"
    exclude.write_text("split,row\ntrain,1\n")
    train(str(folder / "old.npz"), out=tmp_path / "run", exclude=str(exclude), dim=4, epochs=0, reporter=QUIET)
    exclude.unlink()  # the run has a copy
    same = continued_config(tmp_path / "run", str(folder / "old.npz"))
    assert same.data.exclude == str(tmp_path / "run" / "exclude.csv")
    assert continued_config(tmp_path / "run", write_vectors(tmp_path / "other.npz", "ijkl")).data.exclude is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 3}, r"model\.dim is 4 in .*first and cannot become 3"),
        ({"start": "nowhere"}, "nowhere is not a run directory"),
        ({"start": "unfinished"}, "not finished.*--resume"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_any_work(
    folder: Path, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    (tmp_path / "unfinished").mkdir()
    RunDir(tmp_path / "unfinished").write_config(RunDir(folder / "first").read_config())
    start = tmp_path / str(settings["start"]) if "start" in settings else folder / "first"
    with pytest.raises(UserError, match=message):
        train("missing.npz", out=tmp_path / "out", reporter=QUIET, **{**settings, "start": str(start)})
    assert not (tmp_path / "out").exists()


def test_data_that_the_encoder_does_not_take_are_refused(folder: Path, tmp_path: Path) -> None:
    wide = write_vectors(tmp_path / "wide.npz", "abcd", width=9)
    with pytest.raises(UserError, match=r"model\.safetensors.*do not fit"):
        train(wide, start=folder / "first", reporter=QUIET)


def test_another_kind_of_data_is_refused(folder: Path) -> None:
    texts = [f"{word} {number}" for word in ("reset", "cancel", "pay", "find") for number in range(5)]
    with pytest.raises(UserError, match="takes vectors, but the data are texts"):
        train((texts, [text[0] for text in texts]), start=folder / "first", reporter=QUIET)


def test_another_number_of_centres_starts_from_the_data(folder: Path) -> None:
    run = train(str(folder / "old.npz"), start=folder / "first", centers_per_class=3, epochs=0, reporter=QUIET)
    centers = run.centers()
    assert centers is not None
    assert centers.shape == (4, 3, 4)
    assert isinstance(run.encoder, Encoder)
