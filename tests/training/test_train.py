"""Training from data to report: every kind of source, resumed runs to the last bit, wrong input."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, ImageArray, Split, Vectors, View, make_benchmark
from softtriple.data.benchmark import item_ids
from softtriple.errors import UserError
from softtriple.losses import LOSSES
from softtriple.metrics import evaluate
from softtriple.models import Encoder
from softtriple.models.features import Reading, cached_feed, embed_feed, item_feed
from softtriple.progress import Reporter
from softtriple.training.auto import centers_for
from softtriple.training.checkpoint import read_state
from softtriple.training.fit import row_batches
from softtriple.training.loading import load_data
from softtriple.training.prepare import prepare
from softtriple.training.run import Run
from softtriple.training.train import train, train_prepared

QUIET = Reporter(quiet=True)
SMALL = ["train.epochs=2", "train.batch_size=16", "model.dim=8", "loss.centers_per_class=2"]


def run(data: str | Benchmark, out: Path | None, *settings: str, resume: bool = False) -> Run:
    config = with_settings(Config(), [*SMALL, *settings])
    return train(data, out=out, config=config, resume=resume, reporter=QUIET)


def clusters(num_classes: int = 6, per_class: int = 12, dim: int = 10) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(num_classes), per_class)
    centers = 3 * random.standard_normal((num_classes, dim))
    return (centers[labels] + random.standard_normal((len(labels), dim))).astype(np.float32), labels


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    file = tmp_path / "vectors.npz"
    values, labels = clusters()
    np.savez(file, vectors=values, labels=labels)
    return str(file)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of class folders of small pictures: a class is a colour and where its square is."""
    random = np.random.default_rng(0)
    folder = tmp_path / "pictures"
    for label in range(6):
        (folder / f"class {label}").mkdir(parents=True)
        for item in range(6):
            pixels = random.integers(0, 60, (40, 48, 3), dtype=np.uint8)
            pixels[4 * label : 4 * label + 14, 5:30, label % 3] = 200
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{item}.png")
    return folder


CONV = ["model.backbone=conv-small", "model.input_size=28", "data.augment=crop"]


def test_a_run_leaves_everything_behind(vectors: str, tmp_path: Path) -> None:
    outcome = run(vectors, tmp_path / "run")
    files = {path.name for path in (tmp_path / "run").iterdir()} - {".lock"}
    assert files == {
        *("config.toml", "log.jsonl", "checkpoints", "encoder", "centers.safetensors"),
        *("report.json", "baseline.json", "data.json", "README.md"),
    }
    assert [entry["epoch"] for entry in outcome.log] == [1, 2]
    report = json.loads(outcome.directory.report_file.read_text())
    assert report["recall"]["1"] == outcome.report.recall[1]
    assert outcome.report.recall[1] > 0.8
    assert load_file(outcome.directory.centers_file)["centers"].shape == (3, 2, 8)
    again = Encoder.load(tmp_path / "run")
    embedded = again(torch.from_numpy(outcome.benchmark().test.items.take(np.arange(5)).values))
    torch.testing.assert_close(embedded, outcome.test_embeddings.vectors[:5])
    assert again.class_names == ("0", "1", "2")


def test_images_in_a_folder(images: Path, tmp_path: Path) -> None:
    outcome = run(str(images), tmp_path / "run", *CONV, "train.epochs=6")
    assert outcome.report.num_queries == 18
    assert outcome.report.recall[1] > 0.5
    assert outcome.config.model.freeze_batch_norm == "off"


def test_a_table(images: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{path},{path.parent.name}" for path in sorted(images.rglob("*.png"))]
    table.write_text("\n".join(["file,kind", *rows]))
    outcome = run(str(table), tmp_path / "run", *CONV, "data.path=file", "data.label=kind")
    assert outcome.encoder.class_names == ("class 0", "class 1", "class 2")


def test_a_setting_is_insisted_on_also_where_it_says_the_usual(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{number}.png,words {number},{number % 4},{('train', 'test')[number % 2]}" for number in range(16)]
    table.write_text("\n".join(["path,text,label,split", *rows]))

    def load(*settings: str) -> Benchmark:
        return load_data(with_settings(Config(dataset=str(table)), settings), QUIET)

    with pytest.raises(ValueError, match="columns path, text could be meant"):
        load()
    with pytest.raises(ValueError, match=r"16 of 16 rows cannot be used.*0\.png: no such file"):
        load("data.path=path")
    by_column, by_class = load("data.text=text"), load("data.text=text", "data.split=classes")
    assert np.unique(by_column.train.labels).tolist() == [0, 2]
    assert np.unique(by_class.train.labels).tolist() == [0, 1]
    with pytest.raises(ValueError, match="digits has no option 'split'"):
        load_data(with_settings(Config(dataset="digits"), ["data.split=classes"]), QUIET)


def test_same_seed_same_numbers_and_another_seed_others(vectors: str, tmp_path: Path) -> None:
    first, again, other = (
        run(vectors, tmp_path / name, f"train.seed={seed}") for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert torch.equal(first.test_embeddings.vectors, again.test_embeddings.vectors)
    assert not torch.equal(first.test_embeddings.vectors, other.test_embeddings.vectors)


def test_classes_split_by_instances_have_an_accuracy(vectors: str, tmp_path: Path) -> None:
    outcome = run(vectors, tmp_path / "run", "data.split=instances", "train.epochs=30")
    assert outcome.report.accuracy is not None
    assert outcome.report.accuracy > 0.8
    assert run(vectors, tmp_path / "by class").report.accuracy is None


@pytest.mark.parametrize("loss", ["softtriple", "softmax", "semi-hard"])
def test_a_run_is_evaluated_to_the_report_that_training_gave(vectors: str, tmp_path: Path, loss: str) -> None:
    out = tmp_path / "run"
    outcome = run(vectors, out, "data.split=instances", f"loss.name={loss}", "loss.centers_per_class=auto")
    assert (outcome.report.accuracy is None) == (loss == "semi-hard")
    assert replace(Run.load(out).evaluate(), seconds=outcome.report.seconds) == outcome.report


def test_centers_of_another_run_are_refused(vectors: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    outcome = run(vectors, out, "data.split=instances")
    save_file({"centers": torch.ones(2, 2, 8)}, outcome.directory.centers_file)
    with pytest.raises(ValueError, match=r"centers.safetensors: .*centers"):
        Run.load(out).evaluate()


def test_epochs_are_measured_against_the_gallery(tmp_path: Path) -> None:
    values, labels = clusters()
    parts = [Split(Vectors(values[rows]), labels[rows]) for rows in np.split(np.arange(72), [36, 54])]
    parts[2] = replace(parts[2], items=Vectors(-values[36:54]), labels=parts[1].labels)  # nothing is near its own class
    names = tuple(map(str, range(6)))
    drawn = Benchmark(name="drawn", class_names=names, train=parts[0], test=parts[1], gallery=parts[2])
    outcome = run(drawn, tmp_path / "run", "train.evaluate_every=1")
    last = outcome.log[-1]
    assert last["test_recall@1"] == outcome.report.recall[1]
    assert last["test_map_at_r"] == outcome.report.map_at_r


def test_held_out_classes_are_not_trained_on(vectors: str, tmp_path: Path) -> None:
    outcome = run(vectors, tmp_path / "run", "train.hold_out=0.4", "train.evaluate_every=1")
    assert outcome.validation is not None
    assert len(outcome.encoder.class_names) == 2
    assert outcome.validation.num_classes == 1
    assert "validation_recall@1" in outcome.log[0]


def test_held_out_images_are_not_kept_twice(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path / "cache"))
    settings = [*CONV, "train.hold_out=0.4", "train.epochs=1", "data.cache_gigabytes=inf"]
    outcome = run(str(images), tmp_path / "run", *settings)
    assert outcome.directory.read_config().data.cache_gigabytes == np.inf
    assert outcome.validation is not None
    assert len(list((tmp_path / "cache").glob("images-*"))) == 2  # of the training half and of the test half


def test_half_precision_resumes_to_the_same_bits(vectors: str, tmp_path: Path) -> None:
    settings = ["train.precision=float16", "train.epochs=6", "train.batch_size=36", "model.head_init=random"]
    whole = run(vectors, tmp_path / "whole", *settings)
    last = max(whole.directory.checkpoints.iterdir())
    state = read_state(last)
    # Found by trying, and halved at most once in the one step of an epoch: none began again with the first guess.
    assert state["scaler"]["scale"] < torch.amp.GradScaler("cpu").get_scale() / 2
    last.unlink()
    resumed = run(vectors, tmp_path / "whole", *settings, resume=True)
    assert torch.equal(whole.test_embeddings.vectors, resumed.test_embeddings.vectors)
    assert read_state(last)["scaler"] == state["scaler"]


def test_a_loss_that_is_not_finite_stops_the_run(vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from softtriple.losses import SoftTripleLoss

    original = SoftTripleLoss.forward
    calls = 0

    def forward(self: SoftTripleLoss, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return original(self, embeddings, labels) * (float("nan") if calls == 5 else 1.0)

    monkeypatch.setattr(SoftTripleLoss, "forward", forward)
    with pytest.raises(UserError, match=r"nan in batch 2 of epoch 2.*last good state"):
        run(vectors, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-00001-batch-0000000.pt"]


def test_kept_outputs_of_a_frozen_trunk_are_those_of_the_network(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (9, 32, 32), dtype=np.uint8)
    split = Split(ImageArray(pixels), np.zeros(9, dtype=np.int64))
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("conv-small", dim=5).eval()
    still = Reading(View(size=32, resize=32))
    expected = embed_feed(encoder, item_feed(encoder, split, still))
    for frozen in (1, 2, encoder.num_stages):
        kept = cached_feed(encoder, split, still, frozen=frozen, views=1)
        assert kept.first == frozen
        torch.testing.assert_close(embed_feed(encoder, kept), expected, rtol=1e-5, atol=1e-6)
    moving = Reading(View(size=32, resize=32, augment="affine"))
    kept = cached_feed(encoder, split, moving, frozen=2, views=3, seed=1)
    rows = [np.arange(9)]
    views = [next(item_feed(encoder, split, moving).batches(rows, view))[0] for view in range(3)]
    with torch.no_grad():
        candidates = torch.stack([encoder.backbone.run(view, 0, 2) for view in views])
    (drawn, _), (other, _) = (next(kept.batches(rows, epoch)) for epoch in (0, 1))
    distances = (candidates - drawn).flatten(2).abs().amax(-1)
    assert distances.amin(0).max() < 1e-2  # each row is one of its views, in half precision
    assert not torch.equal(drawn, other)


def test_a_frozen_trunk_is_not_trained_and_its_kept_outputs_are_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: Path
) -> None:
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path / "cache"))
    settings = [*CONV, "model.trainable=last:2", "train.views=2"]
    first = run(str(images), tmp_path / "a", *settings)
    kept = sorted(path.stat().st_ino for path in (tmp_path / "cache").rglob("*.npy"))
    assert len(kept) == 3  # two augmented views of the training items, one still view of the test items
    # What is there needs no room: else a run that filled the disk would not resume to the same bits.
    monkeypatch.setattr("softtriple.data.cache.disk_usage", lambda folder: SimpleNamespace(free=0))
    second = run(str(images), tmp_path / "b", *settings)
    assert sorted(path.stat().st_ino for path in (tmp_path / "cache").rglob("*.npy")) == kept
    assert torch.equal(first.test_embeddings.vectors, second.test_embeddings.vectors)
    fresh = run(str(images), tmp_path / "c", *settings, "data.cache_gigabytes=0")
    assert fresh.report.num_queries == 18


def test_head_from_pca(images: Path, tmp_path: Path) -> None:
    settings = [*CONV, "model.head_init=pca", "model.trainable=head", "data.augment=none", "train.epochs=0"]
    outcome = run(str(images), tmp_path / "run", *settings)
    view = View(size=outcome.encoder.preprocess.size, resize=outcome.encoder.preprocess.resize)
    feed = item_feed(outcome.encoder, outcome.training_split, Reading(view))
    ((pixels, _),) = feed.batches([np.arange(len(outcome.training_split))], 0)
    with torch.no_grad():
        features = outcome.encoder.features(pixels).double()
        projected = outcome.encoder.head(features.float()).double()
    # The head keeps as much of the spread of the features as any eight directions can.
    spread = torch.linalg.svdvals(features - features.mean(dim=0)) ** 2
    assert projected.mean(dim=0).abs().max() < 1e-4
    torch.testing.assert_close(projected.square().sum(), spread[:8].sum(), rtol=1e-4, atol=0.0)


def test_unreadable_images_stop_or_are_left_out(images: Path, tmp_path: Path) -> None:
    (images / "class 1" / "0.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"class 1/0\.png"):
        run(str(images), tmp_path / "stop", *CONV)
    outcome = run(str(images), tmp_path / "skip", *CONV, "data.on_error=skip")
    assert len(outcome.training_split) == 17
    (left_out,) = (tmp_path / "skip" / "skipped.txt").read_text().splitlines()
    assert "class 1/0.png" in left_out


def test_queries_search_a_gallery(tmp_path: Path) -> None:
    values, labels = clusters()
    even = np.arange(72) % 2 == 0
    parts = {"train": labels < 3, "test": (labels >= 3) & even, "gallery": (labels >= 3) & ~even}
    splits = {name: Split(Vectors(values[rows]), labels[rows]) for name, rows in parts.items()}
    benchmark = Benchmark(name="shop", class_names=tuple("abcdef"), recall_at=(1, 10), **splits)
    outcome = run(benchmark, tmp_path / "run")
    assert (outcome.report.num_queries, outcome.report.num_gallery) == (18, 18)
    assert sorted(outcome.report.recall) == [1, 10]
    assert outcome.report.recall[10] > 0.9


@pytest.mark.parametrize(
    "name", [*sorted(LOSSES), "pml:MultiSimilarityLoss", "pml:TripletMarginLoss+TripletMarginMiner"]
)
def test_every_loss_trains_through_the_same_loop(vectors: str, tmp_path: Path, name: str) -> None:
    small = ["train.epochs=2", "train.batch_size=16", "model.dim=9", "model.hidden=[12, 12, 12]"]
    settings = [*small, f"loss.name={name}"]
    outcome = train(vectors, out=tmp_path / "run", config=with_settings(Config(), settings), reporter=QUIET)
    assert len(outcome.log) == 2
    assert outcome.report.recall[1] > 0.5


def test_a_run_resumes_with_its_own_settings(vectors: str, tmp_path: Path) -> None:
    first = train(vectors, out=tmp_path / "run", loss="proxy-nca", epochs=1, dim=4, reporter=QUIET)
    again = train(vectors, out=tmp_path / "run", resume=True, reporter=QUIET)
    assert again.config == first.config
    with pytest.raises(UserError, match="out="):
        train(vectors, resume=True, reporter=QUIET)


def test_a_loss_that_looks_ahead_resumes_at_epochs(vectors: str, tmp_path: Path) -> None:
    """HTL builds its tree at the start of an epoch, from embeddings that are gone later."""
    settings = ["loss.name=htl", "loss.centers_per_class=auto"]
    whole = run(vectors, tmp_path / "whole", *settings, "train.epochs=4", "train.checkpoint_minutes=0")
    stopped = [*settings, "train.epochs=4", "train.checkpoint_minutes=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softtriple.training.fit.row_batches", _stop_in_epoch_2)
        with pytest.raises(KeyboardInterrupt):
            run(vectors, tmp_path / "broken", *stopped)
    resumed = run(vectors, tmp_path / "broken", *stopped, resume=True)
    assert torch.equal(whole.test_embeddings.vectors, resumed.test_embeddings.vectors)


def _stop_in_epoch_2(loss: object, labels: object, config: object, epoch: int) -> object:
    for number, rows in enumerate(row_batches(loss, labels, config, epoch)):
        if epoch == 2 and number == 1:
            raise KeyboardInterrupt
        yield rows


@pytest.mark.parametrize(("sizes", "k"), [([60] * 9, 10), ([5, 6, 5, 4], 2), ([1, 1], 1), ([12] * 3, 5)])
def test_centers_follow_the_class_sizes(sizes: list[int], k: int) -> None:
    assert centers_for(np.array(sizes)) == k
    assert k <= max(sizes)


# Values in and out.


def test_arrays_in_memory_train_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values, labels = clusters()
    trained = train((values, labels), epochs=2, dim=8, batch_size=16, reporter=QUIET)
    assert trained.directory is None
    assert trained.report.recall[1] > 0.8
    assert trained.encoder.embed(values[:3]).shape == (3, 8)
    assert trained.loss.predict(trained.test_embeddings.vectors[:2]).shape == (2,)
    assert list(tmp_path.iterdir()) == []


def test_labels_may_be_names_and_items_paths(images: Path) -> None:
    paths = sorted(images.rglob("*.png"))
    names = [path.parent.name for path in paths]
    config = with_settings(Config(), [*SMALL, *CONV])
    trained = train((paths, names), config=config, reporter=QUIET)
    assert trained.encoder.class_names == ("class 0", "class 1", "class 2")


def test_a_benchmark_built_by_hand(tmp_path: Path) -> None:
    values, labels = clusters()
    train_rows, test_rows = np.flatnonzero(labels < 3), np.flatnonzero(labels >= 3)
    everything = Split(Vectors(values), labels)
    benchmark = Benchmark(
        name="by hand",
        class_names=tuple("abcdef"),
        train=everything.take(train_rows),
        test=everything.take(test_rows),
    )
    trained = run(benchmark, tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    assert loaded.report == trained.report
    assert loaded.config == trained.config
    assert [entry["loss"] for entry in loaded.log] == [entry["loss"] for entry in trained.log]
    assert torch.equal(loaded.loss.centers, trained.loss.centers)
    np.testing.assert_array_equal(loaded.encoder.embed(values[:4]), trained.encoder.embed(values[:4]))
    assert replace(loaded.evaluate(benchmark), seconds=trained.report.seconds) == trained.report
    with pytest.raises(UserError, match="data in memory"):
        loaded.benchmark()


def test_a_backbone_of_ones_own(tmp_path: Path) -> None:
    values, labels = clusters()

    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU())

    trained = train((values, labels), backbone=network(), out=tmp_path / "run", epochs=2, dim=8, reporter=QUIET)
    assert trained.report.recall[1] > 0.5
    expected = trained.encoder.embed(values[:4])
    np.testing.assert_allclose(Run.load(tmp_path / "run", backbone=network()).encoder.embed(values[:4]), expected)
    with pytest.raises(UserError, match="backbone"):
        Run.load(tmp_path / "run")


def test_a_loss_of_ones_own(tmp_path: Path) -> None:
    class Prototypes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 8))

        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(10 * embeddings @ self.weight.T, labels)

    values, labels = clusters()
    mine = Prototypes()
    before = mine.weight.detach().clone()
    trained = train((values, labels), loss=mine, out=tmp_path / "run", epochs=2, dim=8, reporter=QUIET)
    assert not torch.equal(mine.weight, before)
    assert trained.report.recall[1] > 0.5
    assert trained.report.accuracy is None
    fresh = Prototypes()
    assert Run.load(tmp_path / "run", loss=fresh).loss is not None
    assert torch.equal(fresh.weight, mine.weight)
    with pytest.raises(UserError, match=r"Run.load\(path, loss=your_loss\)"):
        _ = Run.load(tmp_path / "run").loss


def test_prepare_and_train_prepared_are_train(vectors: str, tmp_path: Path) -> None:
    config = with_settings(Config(dataset=vectors), SMALL)
    prepared = prepare(config, reporter=QUIET)
    assert "auto" not in (prepared.config.model.backbone, prepared.config.model.dim, prepared.config.train.lr)
    apart = train_prepared(prepared, directory=None, reporter=QUIET)
    whole = run(vectors, tmp_path / "run")
    assert torch.equal(apart.test_embeddings.vectors, whole.test_embeddings.vectors)


def test_a_single_class_is_refused_with_advice() -> None:
    with pytest.raises(UserError, match=r"at least 2.*--set data\.split=instances"):
        train((np.zeros((6, 3), dtype=np.float32), [0, 0, 0, 1, 1, 1]), reporter=QUIET, hold_out=0.0, epochs=1)


def test_a_run_is_evaluated_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = clusters()
    np.savez(tmp_path / "vectors.npz", vectors=values, labels=labels)
    monkeypatch.chdir(tmp_path)
    trained = run("vectors.npz", tmp_path / "run", "data.split=instances")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert replace(Run.load(tmp_path / "run").evaluate(), seconds=trained.report.seconds) == trained.report


def test_a_budget_plans_once_and_the_plan_is_resumed(images: Path, tmp_path: Path) -> None:
    settings = {"backbone": "efficientnet-lite0", "input_size": 32, "epochs": 1, "dim": 4, "minutes": 60.0}
    first = train(str(images), out=tmp_path / "run", **settings)
    assert (first.config.model.trainable, first.config.train.minutes) == ("all", None)
    again = train(str(images), out=tmp_path / "run", resume=True, **settings)
    assert again.config == first.config
    assert (again.report.recall, again.report.map_at_r) == (first.report.recall, first.report.map_at_r)
    with pytest.raises(UserError, match=r"train\.minutes = 60"):
        train(str(images), trainable="head", **settings)


def test_held_out_classes_end_the_training_of_published_weights(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    colors = random.integers(0, 256, (42, 1, 1, 1, 3))
    pixels = np.clip(colors + random.integers(-40, 41, (42, 3, 32, 32, 3)), 0, 255).astype(np.uint8)
    benchmark = make_benchmark(list(pixels.reshape(-1, 32, 32, 3)), np.repeat(np.arange(42), 3).tolist())
    settings = {"input_size": 32, "epochs": 1, "dim": 4, "trainable": "all", "backbone": "efficientnet-lite0"}
    first = train(benchmark, out=tmp_path / "run", reporter=QUIET, **settings)
    assert first.config.train.hold_out == 5 / 21
    assert first.config.train.interpolate in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert len(first.encoder.class_names) == 16
    assert first.validation is not None
    assert Run.load(tmp_path / "run").config == first.config
    again = train(benchmark, out=tmp_path / "run", resume=True, reporter=QUIET, **settings)
    assert again.config == first.config
    assert (again.report.recall, again.report.map_at_r) == (first.report.recall, first.report.map_at_r)


def test_several_widths_are_trained_and_measured(vectors: str, tmp_path: Path) -> None:
    config = with_settings(Config(), ["train.epochs=2", "model.dims=[2, 4, 8]", "loss.centers_per_class=2"])
    trained = train(vectors, out=tmp_path / "run", config=config, reporter=QUIET)
    assert trained.encoder.dim == 8
    assert trained.config.model.dim == 8
    assert list(trained.prefixes) == [2, 4]
    loaded = Run.load(tmp_path / "run")
    assert loaded.prefixes == trained.prefixes
    assert loaded.loss.prefixes == (2, 4)
    test = trained.benchmark().test
    for width, report in trained.prefixes.items():
        embedded = loaded.encoder.truncated(width).embed(test.items.values)
        again = evaluate(embedded, test.labels, kmeans_restarts=0)
        assert report.recall == pytest.approx(again.recall)
        assert report.map_at_r == pytest.approx(again.map_at_r)
        assert report.intervals
    assert "| 2 | " in (tmp_path / "run" / "README.md").read_text()
    resumed = train(vectors, out=tmp_path / "run", config=config, resume=True, reporter=QUIET)
    assert [report.map_at_r for report in resumed.prefixes.values()] == [
        report.map_at_r for report in trained.prefixes.values()
    ]
    plain = run(vectors, tmp_path / "plain")
    assert plain.prefixes == {}
    assert Run.load(tmp_path / "plain").prefixes == {}
    assert not (tmp_path / "plain" / "prefixes.json").exists()


def test_corrected_labels_are_trained_on_and_kept(tmp_path: Path) -> None:
    whole = load_data(Config(dataset="digits"), QUIET)
    first, second = item_ids(whole.train.items.take(np.arange(2)), Counter())
    table = tmp_path / "changes.csv"
    table.write_text(f"item,label\n{first},9\n{second},\n")
    run = train("digits", out=tmp_path / "run", labels=str(table), epochs=1, dim=8, reporter=QUIET)
    trained = run.benchmark().train
    assert len(trained) == len(whole.train) - 1
    assert run.benchmark().class_names[trained.labels[0]] == "9"
    assert (tmp_path / "run" / "labels.csv").read_text() == table.read_text()
    again = Run.load(tmp_path / "run")
    assert again.config.data.labels == str(table)
    np.testing.assert_array_equal(again.benchmark().train.labels, trained.labels)
    with pytest.raises(UserError, match=r"nothing\.csv: no such file"):
        train("digits", labels=str(tmp_path / "nothing.csv"), reporter=QUIET)
    with pytest.raises(UserError, match="none of 2 labels changes an item of data"):
        train((np.eye(4), [0, 0, 1, 1]), labels=str(table), reporter=QUIET)


def test_unreadable_files_in_memory_are_skipped(images: Path) -> None:
    paths = sorted(images.rglob("*.png"))
    paths[0].write_bytes(b"damaged")
    items = (paths, [path.parent.name for path in paths])
    with pytest.raises(UserError, match=r"--on-error skip"):
        train(items, backbone="conv-small", dim=8, epochs=0, reporter=QUIET)
    trained = train(items, backbone="conv-small", dim=8, epochs=0, on_error="skip", reporter=QUIET).benchmark()
    assert len(trained.train) + len(trained.test) == len(paths) - 1
    assert [skipped.startswith(str(paths[0])) for skipped in trained.skipped] == [True]


def test_other_data_are_evaluated_with_the_columns_of_the_run(tmp_path: Path) -> None:
    rows = [f"{word} {number},{word}" for word in ("reset", "cancel", "pay", "find") for number in range(4)]
    for name in ("first", "second"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["words,topic", *rows]))
    run = train(tmp_path / "first.csv", text="words", label="topic", dim=4, epochs=0, reporter=QUIET)
    assert run.config.dataset == str(tmp_path / "first.csv")
    assert run.evaluate(str(tmp_path / "second.csv")).recall == run.report.recall
