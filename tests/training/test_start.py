"""Where training starts and how far it goes, from data to the files of a run."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, Split, Texts, Vectors
from softtriple.errors import UserError
from softtriple.models import Encoder
from softtriple.models.heads import Start, closed_form_head
from softtriple.progress import Reporter
from softtriple.training.run import Run
from softtriple.training.start import choose_network_share, head_start, initialize_backbone, trained_values
from softtriple.training.train import train

QUIET = Reporter(quiet=True)
CLASSES, PER_CLASS = 44, 6


def made_vectors(seed: int = 0) -> Benchmark:
    """Clusters in 6 columns beside 6 columns of noise; half of the 44 classes are for the test."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    centers = random.standard_normal((CLASSES, 6))
    signal = centers[labels] + 0.4 * random.standard_normal((len(labels), 6))
    values = np.concatenate([signal, 2 * random.standard_normal((len(labels), 6))], axis=1).astype(np.float32)
    train, test = (
        Split(Vectors(values[rows]), labels[rows]) for rows in np.split(np.arange(len(labels)), [len(labels) // 2])
    )
    names = tuple(f"class {label:02}" for label in range(CLASSES))
    return Benchmark(name="made", class_names=names, train=train, test=test)


def run(benchmark: Benchmark, out: Path | None, *settings: str, resume: bool = False) -> Run:
    config = with_settings(Config(), ["train.epochs=3", "train.batch_size=32", *settings])
    return train(benchmark, out=out, config=config, resume=resume, reporter=QUIET)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(made_vectors(), tmp_path_factory.mktemp("runs") / "run")


def autos(values: dict[str, Any]) -> list[str]:
    return [name for name, value in values.items() if value == "auto" or (isinstance(value, dict) and autos(value))]


def chosen(run: Run) -> list[object]:
    return [*head_start(run.config), run.config.train.stop_after, run.config.train.interpolate]


def test_everything_is_decided_and_recorded(outcome: Run) -> None:
    config = outcome.config
    # A run may continue on another machine; and "choose" says who decides, not what was decided.
    open_settings = {"workers", "choose"}
    for group in (config.data, config.model, config.loss, config.train):
        assert set(autos(dataclasses.asdict(group))) <= open_settings
    assert outcome.directory.read_config() == config
    assert 0 <= config.train.stop_after <= config.train.epochs == 3
    assert 0 <= config.train.interpolate <= 1
    assert len(outcome.log) == config.train.stop_after


def test_whitening_is_found_and_beats_the_vectors(outcome: Run) -> None:
    assert outcome.config.model.head_init == "whitened"
    assert outcome.config.model.head_power > 0
    assert outcome.baseline is not None
    assert outcome.report.recall[1] > outcome.baseline.recall[1]
    assert outcome.report.map_at_r > outcome.baseline.map_at_r


def test_the_same_run_again_gives_the_same_bits(outcome: Run, tmp_path: Path) -> None:
    again = run(made_vectors(), tmp_path / "again")
    assert again.config == outcome.config
    assert torch.equal(again.test_embeddings.vectors, outcome.test_embeddings.vectors)
    nowhere = run(made_vectors(), None)
    assert torch.equal(nowhere.test_embeddings.vectors, outcome.test_embeddings.vectors)


@pytest.mark.parametrize("share", ["auto", "0.5"])
def test_a_resumed_run_gives_the_same_bits(tmp_path: Path, share: str) -> None:
    settings = [] if share == "auto" else [f"train.interpolate={share}"]
    whole = run(made_vectors(), tmp_path / "run", *settings)
    checkpoints = sorted(whole.directory.checkpoints.iterdir())
    assert len(checkpoints) == min(2, len(whole.log))
    for newest in checkpoints[-1:]:
        newest.unlink()
    resumed = run(made_vectors(), tmp_path / "run", *settings, resume=True)
    assert resumed.config == whole.config
    assert torch.equal(resumed.test_embeddings.vectors, whole.test_embeddings.vectors)
    assert resumed.baselines == whole.baselines


def test_choosing_can_be_turned_off() -> None:
    config = run(made_vectors(), None, "train.choose=off").config
    assert (config.train.stop_after, config.train.interpolate) == ("auto", 1.0)


def test_too_few_classes_to_hold_out_train_to_the_end() -> None:
    made = made_vectors()
    rows = np.arange(3 * PER_CLASS)
    few = replace(made, train=Split(made.train.items.take(rows), made.train.labels[rows]))
    config = run(few, None).config
    assert (config.train.stop_after, config.train.interpolate) == ("auto", 1.0)
    assert config.model.head_power != "auto"


def test_what_is_given_is_kept() -> None:
    settings = ["model.head_power=0.7", "model.head_shrinkage=0.2", "train.stop_after=2", "train.interpolate=0.5"]
    outcome = run(made_vectors(), None, *settings)
    assert head_start(outcome.config)[:2] == (0.7, 0.2)
    assert (outcome.config.train.stop_after, outcome.config.train.interpolate) == (2, 0.5)
    assert len(outcome.log) == 2


def test_no_share_of_training_is_the_start() -> None:
    outcome = run(made_vectors(), None, "train.interpolate=0.0", "train.stop_after=1", "model.dim=5")
    split = outcome.training_split
    features = torch.from_numpy(split.items.values)
    expected = closed_form_head(features, torch.from_numpy(split.labels), 5, head_start(outcome.config))
    for ours, start in zip((outcome.encoder.head.weight, outcome.encoder.head.bias), expected, strict=True):
        torch.testing.assert_close(ours.detach(), start.float())


@pytest.mark.parametrize("what", ["labels", "items"])
def test_test_classes_decide_nothing(outcome: Run, what: str) -> None:
    made = made_vectors()
    order = np.random.default_rng(1).permutation(len(made.test))
    if what == "labels":
        test = Split(made.test.items, made.test.labels[order])
    else:
        test = Split(Vectors(-(made.test.items.values[order] ** 2)), made.test.labels)
    other = run(replace(made, test=test), None)
    assert chosen(other) == chosen(outcome)
    assert torch.equal(other.encoder.head.weight, outcome.encoder.head.weight)
    assert other.report.recall[1] < outcome.report.recall[1]


def test_the_baseline_is_kept(outcome: Run) -> None:
    assert outcome.directory.baseline_file.is_file()
    loaded = Run.load(outcome.directory.path)
    assert loaded.baseline == outcome.baseline
    assert dict(loaded.baselines) == dict(outcome.baselines)
    assert list(outcome.baselines) == ["the vectors themselves, 12-d"]


def test_changed_data_are_not_resumed(tmp_path: Path) -> None:
    made = made_vectors()
    run(made, tmp_path / "run")
    report = (tmp_path / "run" / "report.json").read_bytes()
    for changed in (
        made_vectors(seed=1),
        replace(made, class_names=("other", *made.class_names[1:])),
        replace(made, test=Split(made.test.items, made.test.labels[::-1].copy())),
    ):
        with pytest.raises(UserError, match=r"run: cannot resume: .*data.*--out"):
            run(changed, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "report.json").read_bytes() == report


def test_pca_is_power_zero() -> None:
    assert head_start(with_settings(Config(), ["model.head_init=pca"])) == Start(0.0, 0.0, center=1.0)


@pytest.mark.parametrize(("written", "share"), [("true", 1.0), ("false", 0.0), ("0.25", 0.25)])
def test_the_share_of_the_mean_may_be_written_as_a_flag(written: str, share: float) -> None:
    settings = ["model.head_power=1", "model.head_shrinkage=0.1", f"model.head_center={written}"]
    assert head_start(with_settings(Config(), [*settings, "model.head_standardize=false"])).center == share


def test_the_text_network_starts_as_tfidf() -> None:
    encoder = Encoder.from_backbone("text", dim=4)
    texts = ("reset my password", "reset the password", "where is my order", "my order is late")
    before = encoder.backbone.get_parameter("ngrams.weight").clone()
    initialize_backbone(encoder, Split(Texts(texts), np.array([0, 0, 1, 1])))
    assert not torch.equal(encoder.backbone.get_parameter("ngrams.weight"), before)
    features = encoder.features(encoder.preprocess(list(texts)))
    similarity = features @ features.T
    assert similarity[0, 1] > similarity[0, 2]
    assert similarity[2, 3] > similarity[1, 3]


def test_other_networks_stay_as_they_are() -> None:
    encoder = Encoder.from_backbone("mlp", dim=4, in_features=3)
    before = encoder.fingerprint()
    initialize_backbone(encoder, Split(Vectors(np.zeros((4, 3), dtype=np.float32)), np.array([0, 0, 1, 1])))
    assert encoder.fingerprint() == before


def test_held_out_classes_decide_how_far_layers_move() -> None:
    """Halfway between two identities with one column amplified each, the held-out classes are apart in both columns."""
    encoder = Encoder.from_backbone("linear", dim=2, in_features=2)
    encoder.set_head(torch.tensor([[1.0, 0.0], [0.0, 0.01]]), torch.zeros(2))
    start = trained_values(encoder)
    encoder.set_head(torch.tensor([[0.01, 0.0], [0.0, 1.0]]), torch.zeros(2))
    random = np.random.default_rng(0)
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=np.float32)
    labels = np.repeat(np.arange(4), 20)
    items = corners[labels] + 0.3 * random.standard_normal((80, 2)).astype(np.float32)
    config = choose_network_share(
        Config(), encoder, start, labels, lambda: torch.from_numpy(encoder.embed(items)), QUIET
    )
    assert config.train.interpolate == 0.5
    torch.testing.assert_close(encoder.head.weight.detach(), torch.tensor([[0.505, 0.0], [0.0, 0.505]]))


def test_layers_that_gained_nothing_return_to_their_start() -> None:
    encoder = Encoder.from_backbone("linear", dim=2, in_features=2)
    encoder.set_head(torch.eye(2), torch.zeros(2))
    start = trained_values(encoder)
    encoder.set_head(torch.zeros(2, 2), torch.ones(2))  # everything in one place
    items, labels = np.eye(2, dtype=np.float32)[[0, 0, 1, 1]], np.array([0, 0, 1, 1])
    config = choose_network_share(
        Config(), encoder, start, labels, lambda: torch.from_numpy(encoder.embed(items)), QUIET
    )
    assert config.train.interpolate == 0
    torch.testing.assert_close(encoder.head.weight.detach(), torch.eye(2))
