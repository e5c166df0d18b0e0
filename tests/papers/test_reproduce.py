"""Targets from end to end, on data that stand in for those of the paper."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.report.html_tree import parse, text

from softtriple.cli import main
from softtriple.config import with_values
from softtriple.data import Benchmark, ImageFiles, Split, load_benchmark
from softtriple.data.download import DownloadError
from softtriple.errors import UserError
from softtriple.papers.recipes import softtriple_recipe
from softtriple.papers.reproduce import TARGETS, choose_protocol, reproduce
from softtriple.papers.runs import Study
from softtriple.progress import Reporter

QUIET = Reporter(quiet=True)
TINY = ["train.epochs=1", "train.batch_size=128", "model.dim=9"]


@pytest.fixture(autouse=True)
def _fewer_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth digit: these tests train some forty times."""
    pixels, labels = load_digits(return_X_y=True)
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **_: (pixels[::4], labels[::4]))


def trained(out: Path) -> list[str]:
    """The runs in ``out`` in the order in which their weights were written."""
    files = sorted(out.glob("*/seed-*/encoder/model.safetensors"), key=lambda file: file.stat().st_mtime_ns)
    return [file.parents[1].relative_to(out).as_posix() for file in files]


@pytest.fixture
def photographs(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    for label in range(4):
        folder = tmp_path / "photographs" / str(label)
        folder.mkdir(parents=True)
        for item in range(3):
            Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / f"{item}.png")
    return str(tmp_path / "photographs")


def make(target: str, data: str | None, out: Path, *settings: str, **options):
    return reproduce(target, data, out, settings=[*TINY, *settings], reporter=QUIET, **options)


def test_a_table_and_its_files(tmp_path: Path) -> None:
    made = make("table2", "digits", tmp_path, seeds=2)
    rows = ["hdc_384", "margin_128", "htl_512", "softmax-norm_512", "softtriple_512"]
    assert trained(tmp_path) == [f"{row}/seed-{seed}" for row in rows for seed in (0, 1)]
    assert list(made.numbers) == rows
    assert [file.name for file in made.files] == ["table2.md", "table2.html"]

    reports = [json.loads((tmp_path / f"htl_512/seed-{seed}/report.json").read_text()) for seed in (0, 1)]
    recalls = [report["recall"]["1"] for report in reports]
    ours = made.numbers["htl_512"]["ours"]["R@1"]
    assert ours["mean"] == pytest.approx(np.mean(recalls))
    assert ours["spread"] == pytest.approx(np.std(recalls, ddof=1))
    assert ours["values"] == tuple(recalls)
    assert made.numbers["htl_512"]["ours"]["MAP@R"]["values"] == tuple(report["map_at_r"] for report in reports)
    assert made.numbers["htl_512"]["published"]["R@1"] == 57.1
    assert "MAP@R" not in made.numbers["htl_512"]["published"]

    shown = f"{100 * np.mean(recalls):.1f}"
    difference = f"{float(shown) - 57.1:+.1f}".replace("-", "−")
    page = text(parse(made.files[1].read_text()))
    for content in (made.text, made.files[0].read_text(), page):
        assert shown in content
        assert difference in content
        assert "± standard deviation of 2 seeds" in content
        for fact in (
            "linear",
            "trained from scratch",
            "all layers",
            "epochs: 1",
            "bn-inception",
            "data: digits, not cub",
        ):
            assert fact in content
    assert "ResNet50" in made.text


def test_a_loss_that_the_table_lacks_is_a_row_without_published_numbers(tmp_path: Path) -> None:
    made = make("table1", "digits", tmp_path, rows=["proxy-anchor", "proxy-nca"])
    assert list(made.numbers) == ["proxy-nca_64", "proxy-anchor_64"]
    assert set(made.numbers["proxy-anchor_64"]["published"].values()) == {None}
    assert made.numbers["proxy-anchor_64"]["ours"]["R@1"]["mean"] > 0


def test_what_the_paper_does_not_state_is_no_departure_from_it(photographs: str, tmp_path: Path) -> None:
    settings = ["model.head_init=random", "train.lr=1e-4"]
    made = make("table1", photographs, tmp_path, *settings, rows=["softmax-norm"], protocol="head")
    departures = next(line for line in made.text.splitlines() if line.startswith("Not the paper's"))
    assert 'model.trainable = "head", not "all"' in departures
    assert "train.views" not in departures


@pytest.mark.parametrize(
    ("table", "first", "second"), [("table1", "proxy-nca_64", "softtriple_64"), ("table2", "margin_128", "hdc_384")]
)
def test_finished_rows_are_read_and_unfinished_ones_continued(table, first, second, tmp_path: Path) -> None:
    made = make(table, "digits", tmp_path, rows=[first, second])
    before = {row: (tmp_path / row / "seed-0/encoder/model.safetensors").stat() for row in (first, second)}
    log = tmp_path / second / "seed-0/log.jsonl"
    epochs = log.read_text()
    (tmp_path / second / "seed-0/report.json").unlink()
    again = make(table, "digits", tmp_path, rows=[first, second])
    after = {row: (tmp_path / row / "seed-0/encoder/model.safetensors").stat() for row in (first, second)}
    assert [before[row].st_mtime_ns == after[row].st_mtime_ns for row in (first, second)] == [True, False]
    assert log.read_text() == epochs  # the epoch was not trained again
    assert again.numbers == made.numbers
    assert again.text == made.text
    # Rows that were not chosen show only their published numbers.
    assert again.text.count("  published  ") == {"table1": 7, "table2": 5}[table]
    assert again.text.count("  ours  ") == 2
    assert "95 % interval" in again.text


def test_a_finished_row_with_other_settings_is_not_used(tmp_path: Path) -> None:
    make("table5", "digits", tmp_path, rows=["softtriple"])
    weights = (tmp_path / "softtriple_64/seed-0/encoder/model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"softtriple_64/seed-0: this run has train.epochs = 1, not 2"):
        make("table5", "digits", tmp_path, "train.epochs=2", rows=["softtriple"])
    assert (tmp_path / "softtriple_64/seed-0/encoder/model.safetensors").read_bytes() == weights
    assert "epochs: 1" not in (tmp_path / "table5.md").read_text()  # the facts are not those of a run left out


def test_columns_that_the_data_do_not_have_are_empty(tmp_path: Path) -> None:
    ours = make("table5", "digits", tmp_path, rows=["softmax-norm"]).numbers["softmax-norm_64"]["ours"]
    assert ours["R@1"] is not None
    assert ours["R@100"] is None  # digits are measured at 1, 2, 4 and 8


def test_one_row_fails_and_the_table_comes_out(tmp_path: Path) -> None:
    made = make("table2", "digits", tmp_path, "model.dim=8", rows=["hdc", "softmax-norm"])
    assert made.numbers["hdc_384"]["ours"]["R@1"] is None
    assert "multiple of 3" in made.numbers["hdc_384"]["lacking"]
    assert made.numbers["softmax-norm_512"]["ours"]["R@1"]["mean"] > 0.5
    assert "hdc_384: " in made.text


def test_missing_weights_are_said_and_asked_for_once(
    photographs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(file, *arguments, **options):
        asked.append(file.name)
        raise DownloadError(f"{file.name}: no network")

    monkeypatch.setattr("softtriple.models.weights.fetch", download)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    with pytest.raises(UserError, match=r"nothing could be run: .*bn_inception.*--set model.weights=FILE"):
        make("table1", photographs, tmp_path, protocol="paper", rows=["softmax-norm", "softtriple"])
    assert len(asked) == 1
    table = (tmp_path / "table1.md").read_text()
    assert "60.1" in table
    assert "--protocol full" in table


def test_missing_data_are_said_with_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file.*available from https://cvgl"):
        make("table6", f"sop:{tmp_path}", tmp_path)
    assert "78.3" in (tmp_path / "table6.html").read_text()


def test_protocols_decide_what_is_trained(tmp_path: Path) -> None:
    split = Split(ImageFiles(("a.jpg",)), np.zeros(1, dtype=np.int64))
    photographs = Benchmark(name="photographs", class_names=("a",), train=split, test=split)
    head, full, paper = ("efficientnet-lite0", "head"), ("efficientnet-lite0", "all"), ("bn-inception", "all")
    for asked, on_gpu, expected in [
        ("head", True, head),
        ("full", False, full),
        ("paper", False, paper),
        (None, False, head),
        (None, True, paper),
    ]:
        protocol = choose_protocol("photographs", photographs, asked, on_gpu=on_gpu)
        config = Study("photographs", tmp_path, QUIET, protocol=protocol).config(softtriple_recipe(), seed=1)
        assert (config.model.backbone, config.model.trainable, config.train.seed) == (*expected, 1)
    assert choose_protocol("digits", load_benchmark("digits"), None, on_gpu=True) == "scratch"


def test_the_protocol_of_the_paper_changes_nothing(tmp_path: Path) -> None:
    config = Study("digits", tmp_path, QUIET, protocol="paper").config(softtriple_recipe(), seed=0)
    assert config == with_values(softtriple_recipe(), {"dataset": "digits"})


@pytest.mark.parametrize("target", ["centers", "recall-vs-k", "retrieved"])
def test_figures_of_the_paper(target: str, tmp_path: Path) -> None:
    made = make(target, "digits", tmp_path)
    expected = {"centers": 2, "recall-vs-k": 9, "retrieved": 2}  # one centre is not run twice
    assert len(trained(tmp_path)) == expected[target]
    assert [file.name for file in made.files] == [f"{target}.{kind}" for kind in ("md", "html", "svg", "png")]
    assert ElementTree.parse(made.files[2]).getroot().tag.endswith("svg")
    with Image.open(made.files[3]) as image:
        image.verify()
    parse(made.files[1].read_text())


def test_distinct_centers_are_those_of_the_runs(tmp_path: Path) -> None:
    numbers = make("centers", "digits", tmp_path, seeds=2).numbers
    assert set(numbers) == {"k20", "k20_no-regularizer"}
    for seeds in numbers.values():
        assert [len(counts) for counts in seeds] == [10, 10]
        assert all(1 <= count <= 20 for counts in seeds for count in counts)


def test_illustration_shows_what_one_centre_cannot_do(tmp_path: Path) -> None:
    made = reproduce("illustration", None, tmp_path, reporter=QUIET)
    accuracy = {name: found["accuracy"] for name, found in made.numbers.items()}
    assert accuracy["softmax-norm"] < 0.7
    assert accuracy["softtriple"] > 0.95
    assert (tmp_path / "illustration.svg").stat().st_size < 300_000


@pytest.mark.parametrize(
    ("target", "data", "options", "sentence"),
    [
        ("table7", "digits", {}, "unknown target 'table7'.*table"),
        ("table1", None, {}, "table1 needs --data"),
        ("illustration", "digits", {}, "illustration has its own data"),
        ("retrieved", "digits", {"seeds": 2}, "--seeds 2: retrieved takes exactly 1"),
        ("table1", "digits", {"seeds": 0}, "--seeds 0"),
        ("table1", "digits", {"rows": ["triplet"]}, "--rows triplet"),
        ("table1", "digits", {"protocol": "head"}, "--protocol head .*digits"),
        ("table1", "digits", {"settings": ["train.epoch=1"]}, "'train.epoch'.*epochs'"),
        ("table1", "digits", {"settings": ["loss.name=softmax"]}, "rows of table1 differ in loss.name"),
        (
            "recall-vs-k",
            "digits",
            {"settings": ["loss.options.tau=1.0"]},
            "rows of recall-vs-k differ in loss.options.tau",
        ),
        ("table1", "digits", {"settings": ["train.seed=3"]}, "train.seed=3.*--seeds"),
        ("hidden-modes", "digits", {}, "digits has no fine labels.*glyphs"),
    ],
)
def test_what_a_user_got_wrong(target: str, data: str | None, options: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        reproduce(target, data, tmp_path, reporter=QUIET, **options)


def test_an_unknown_protocol(photographs: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown protocol 'tail'"):
        make("table1", photographs, tmp_path, protocol="tail")


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [part for setting in TINY for part in ("--set", setting)]
    command = ["reproduce", "table3", "--data", "digits", "--out", str(tmp_path), "--rows", "softmax-norm, softtriple"]
    monkeypatch.setattr(sys, "argv", ["softtriple", *command, *settings, "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["table3"]) == ["softmax-norm_64", "softtriple_64"]
    assert told["files"] == [str(tmp_path / "table3.md"), str(tmp_path / "table3.html")]


def test_every_target_of_the_command_line_is_there() -> None:
    tables = [f"table{number}" for number in range(1, 7)]
    assert list(TARGETS) == [*tables, "centers", "recall-vs-k", "retrieved", "illustration", "hidden-modes"]
