"""Rows and seeds: what is run, what is read, and what is said of a row that cannot be run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.errors import UserError
from softtriple.metrics import evaluate
from softtriple.papers.recipes import RATES
from softtriple.papers.runs import (
    Measured,
    Study,
    decay,
    departures,
    lacking_notes,
    measure,
    nothing_ran,
    report_of,
    select,
    with_chosen_rate,
)
from softtriple.progress import Reporter

ROWS = {"a_64": Config(), "b_64": Config(), "c_64": Config()}


def study(tmp_path: Path, **more) -> Study:
    return Study("digits", tmp_path, Reporter(quiet=True), **more)


def test_every_row_is_looked_at_once_per_seed(tmp_path: Path) -> None:
    def look(config, directory, reporter):
        return directory.path.relative_to(tmp_path).as_posix(), config.train.seed, config.train.views

    measured = measure(study(tmp_path, seeds=2, protocol="full", settings=("train.views=7",)), ROWS, look)
    assert measured["b_64"] == Measured((("b_64/seed-0", 0, 7), ("b_64/seed-1", 1, 7)))
    assert list(measured) == list(ROWS)


def test_held_out_classes_choose_the_learning_rate_of_a_row(tmp_path: Path) -> None:
    vectors, labels = torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
    good = evaluate(vectors, labels, recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    poor = evaluate(vectors, labels[[0, 2, 1, 3]], recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    for rate in RATES["head"]:
        folder = tmp_path / "a_64" / f"rate-{rate:g}"
        folder.mkdir(parents=True)
        (folder / "validation.json").write_text((good if rate == 4e-4 else poor).to_json())
        (folder / "report.json").touch()  # finished, and not looked at
    asking = study(tmp_path, protocol="head")
    assert with_chosen_rate(asking, "a_64", Config()).train.lr == 4e-4
    assert with_chosen_rate(replace(asking, settings=("train.lr=0.5",)), "a_64", Config()) == Config()
    assert with_chosen_rate(replace(asking, protocol="full"), "a_64", Config()) == Config()


def test_what_one_row_lacks_is_not_asked_for_again(tmp_path: Path) -> None:
    asked = []

    def look(config, directory, reporter):
        asked.append(directory.path.parent.name)
        raise FileNotFoundError("no weights")

    asking = study(tmp_path, advice="; get some")
    finished = asking.directory("c_64", 0)
    finished.path.mkdir(parents=True)
    finished.write_config(asking.config(ROWS["c_64"], 0))
    finished.report_file.touch()
    measured = measure(asking, ROWS, look)
    assert asked == ["a_64", "c_64"]  # a finished run may need no weights
    assert measured["b_64"].lacking == "no weights; get some"
    assert nothing_ran(measured) == "no weights; get some"
    (note,) = lacking_notes(measured)
    assert note.endswith("a_64, b_64, c_64: no weights; get some")


def test_a_row_that_fails_leaves_the_others(tmp_path: Path) -> None:
    def look(config, directory, reporter):
        if directory.path.parent.name == "b_64" and config.train.seed == 1:
            raise FloatingPointError("the loss became nan")
        return config.train.seed

    measured = measure(study(tmp_path, seeds=3), ROWS, look)
    assert measured["a_64"] == measured["c_64"] == Measured((0, 1, 2))
    assert measured["b_64"] == Measured((0,), "the loss became nan")
    assert nothing_ran(measured) == ""


@pytest.mark.parametrize("error", [KeyError, ValueError])
def test_bugs_are_not_hidden(tmp_path: Path, error: type[Exception]) -> None:
    def look(config, directory, reporter):
        raise error("a bug")

    with pytest.raises(error, match="a bug"):
        measure(study(tmp_path), ROWS, look)


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    directory = study(tmp_path).directory("a_64", 0)
    directory.path.mkdir(parents=True)
    directory.report_file.write_text("{}")
    with pytest.raises(UserError, match=r"report\.json"):
        report_of(Config(), directory, Reporter(quiet=True))


def test_rows_are_chosen_by_name_or_by_loss() -> None:
    rows = {"softtriple_64": 1, "softtriple_512": 2, "proxy-nca_64": 3}
    assert select(rows, None) == rows
    assert select(rows, ["proxy-nca", "softtriple_512"]) == {"softtriple_512": 2, "proxy-nca_64": 3}
    assert list(select(rows, ["softtriple"])) == ["softtriple_64", "softtriple_512"]
    with pytest.raises(UserError, match=r"--rows softtripel_64: .*'softtriple_64'"):
        select(rows, ["softtripel_64"])


@pytest.mark.parametrize(
    ("milestones", "words"),
    [((), "constant"), ((20,), "epoch 20"), ((20, 40), "epochs 20 and 40"), ((12, 18, 19), "epochs 12, 18 and 19")],
)
def test_milestones_in_words(milestones: tuple[int, ...], words: str) -> None:
    assert decay("step", milestones).endswith(words)


def test_departures_are_named_and_auto_may_be_anything() -> None:
    asked = with_settings(Config(), ["train.epochs=3", "loss.options.tau=0.2"])
    used = with_settings(
        asked, ["train.epochs=4", "model.backbone=linear", "loss.options.tau=0.1", "loss.options.gamma=1"]
    )
    assert departures(asked, asked) == []
    assert departures(asked, used) == [
        "loss.options.gamma = 1, not the default",
        "loss.options.tau = 0.1, not 0.2",
        "train.epochs = 4, not 3",
    ]
