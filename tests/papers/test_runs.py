"""Rows and seeds: what is run, what is read, what is said of a row that cannot be run."""

from pathlib import Path

import pytest

from softtriple.config import Config, with_settings
from softtriple.papers.runs import (
    Measured,
    Study,
    differences,
    lacking_notes,
    listed,
    measure,
    nothing_ran,
    report_of,
    select,
)
from softtriple.progress import Reporter

ROWS = {"a_64": Config(), "b_64": Config(), "c_64": Config()}


def study(tmp_path: Path, **more) -> Study:
    return Study("digits", tmp_path, Reporter(quiet=True), **more)


def test_every_row_is_looked_at_once_a_seed(tmp_path: Path) -> None:
    def look(config, run, reporter):
        return run.path.relative_to(tmp_path).as_posix(), config.train.seed, config.train.views

    found = measure(study(tmp_path, seeds=2, protocol="head", settings=("train.views=7",)), ROWS, look)
    assert found["b_64"] == Measured((("b_64/seed-0", 0, 7), ("b_64/seed-1", 1, 7)))
    assert list(found) == list(ROWS)


def test_what_one_row_lacks_is_not_asked_for_again(tmp_path: Path) -> None:
    asked = []

    def look(config, run, reporter):
        asked.append(run.path.parent.name)
        raise FileNotFoundError("no weights")

    finished = tmp_path / "c_64" / "seed-0" / "report.json"
    finished.parent.mkdir(parents=True)
    finished.touch()
    found = measure(study(tmp_path, advice="; get some"), ROWS, look)
    assert asked == ["a_64", "c_64"]  # what is finished may need no weights
    assert found["b_64"].lacking == "no weights; get some"
    assert nothing_ran(found) == "no weights; get some"
    assert lacking_notes(found) == ["Not run, or not with every seed: a_64, b_64, c_64: no weights; get some"]


def test_a_row_that_fails_leaves_the_others(tmp_path: Path) -> None:
    def look(config, run, reporter):
        if run.path.parent.name == "b_64" and config.train.seed == 1:
            raise FloatingPointError("the loss became nan")
        return config.train.seed

    found = measure(study(tmp_path, seeds=3), ROWS, look)
    assert found["a_64"] == found["c_64"] == Measured((0, 1, 2))
    assert found["b_64"] == Measured((0,), "the loss became nan")
    assert nothing_ran(found) == ""


def test_a_report_that_is_none_is_named(tmp_path: Path) -> None:
    run = study(tmp_path).run_dir("a_64", 0)
    run.path.mkdir(parents=True)
    config = with_settings(Config(), ["dataset=digits"])
    run.write_config(config)
    run.report_file.write_text("{}")
    with pytest.raises(ValueError, match=r"report.json: report: no 'map_at_r'"):
        report_of(config, run, Reporter(quiet=True))


def test_errors_of_ours_are_not_hidden(tmp_path: Path) -> None:
    def look(config, run, reporter):
        raise KeyError("a mistake in the code")

    with pytest.raises(KeyError):
        measure(study(tmp_path), ROWS, look)


def test_rows_are_chosen_by_name_or_by_loss() -> None:
    rows = {"softtriple_64": 1, "softtriple_512": 2, "proxy-nca_64": 3}
    assert select(rows, None) == rows
    assert select(rows, ["proxy-nca", "softtriple_512"]) == {"softtriple_512": 2, "proxy-nca_64": 3}
    assert list(select(rows, ["softtriple"])) == ["softtriple_64", "softtriple_512"]
    with pytest.raises(ValueError, match="--rows softtripel: there is no such row; choose from softtriple_64"):
        select(rows, ["softtripel"])


@pytest.mark.parametrize(
    ("milestones", "words"),
    [((), "no epoch"), ((20,), "epoch 20"), ((20, 40), "epochs 20 and 40"), ((12, 18, 19), "epochs 12, 18 and 19")],
)
def test_epochs_are_listed_as_one_says_them(milestones: tuple[int, ...], words: str) -> None:
    assert listed(milestones) == words


def test_differences_are_named_and_auto_is_none() -> None:
    asked = with_settings(Config(), ["train.epochs=3", "loss.options.tau=0.2"])
    found = with_settings(asked, ["train.epochs=4", "model.backbone=linear", "loss.options.tau=0.1"])
    assert differences(asked, asked) == []
    assert differences(asked, found) == [
        'loss.options = {"tau": 0.1}, not {"tau": 0.2}',
        "train.epochs = 4, not 3",
    ]
