"""Which classes a run is calibrated on, and what it then says of pairs and queries."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from softtriple.data import make_benchmark
from softtriple.errors import UserError
from softtriple.metrics import Calibration
from softtriple.progress import Reporter
from softtriple.training import Run, train
from softtriple.training.calibrating import gallery_size, unseen_rows

QUIET = Reporter(quiet=True)


def items(classes: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 8)
    values = 4 * random.standard_normal((classes, 8))[labels] + random.standard_normal((len(labels), 8))
    return values.astype(np.float32), labels


def trained(out: Path | None = None, **settings) -> Run:
    return train(items(), out=out, epochs=2, dim=4, reporter=QUIET, **settings)


def test_training_calibrates_on_the_test_classes(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    assert run.calibration is not None
    names = run.benchmark().class_names
    assert run.calibration.source == "test classes"
    assert set(run.calibration.classes) == {names[label] for label in run.benchmark().test.labels}
    assert not set(run.calibration.classes) & set(run.encoder.class_names)
    assert Run.load(tmp_path / "run").calibration == run.calibration
    assert run.calibrate() == run.calibration, "the same again"


def test_held_out_classes_come_first() -> None:
    run = trained(hold_out=0.5)
    assert run.calibration is not None
    assert run.calibration.source == "validation classes"
    assert not set(run.calibration.classes) & set(run.encoder.class_names)
    assert len(run.calibration.classes) == 4
    tested = {run.benchmark().class_names[label] for label in run.benchmark().test.labels}
    assert not set(run.calibration.classes) & tested
    assert run.calibrate() == run.calibration


def test_classes_that_were_trained_on_show_nothing() -> None:
    run = trained(split="instances")
    assert run.calibration is None
    with pytest.raises(UserError, match="hold_out"):
        run.calibrate()
    with pytest.raises(UserError, match="calibrate"):
        run.same("row:0", "row:1")


def test_other_data_without_their_trained_classes(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    values, labels = items(20, seed=1)
    made = run.calibrate(make_benchmark(values, labels), far=0.1)
    assert made.level == 0.1
    assert set(made.classes) == {str(label) for label in range(20)} - set(run.encoder.class_names)
    assert Run.load(tmp_path / "run").calibration == made


def test_pairs(tmp_path: Path) -> None:
    run = trained()
    test = run.benchmark().test
    rows = [np.flatnonzero(test.labels == label)[:2] for label in np.unique(test.labels)]
    same = [run.same(f"row:{a}", f"row:{b}") for a, b in rows]
    other = [run.same(f"row:{a[0]}", f"row:{b[0]}") for a, b in itertools.pairwise(rows)]
    assert np.mean([one.same for one in same]) > 0.7
    assert np.mean([one.same for one in other]) < 0.3
    assert all(one.same == (one.probability >= 0.5) for one in [*same, *other])
    again = run.same(test.items.values[rows[0][0]], test.items.values[rows[0][1]])
    assert again == pytest.approx(same[0], abs=1e-6)


def test_a_damaged_calibration_is_named(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    (tmp_path / "run" / "calibration.json").write_text("{}")
    with pytest.raises(UserError, match=r"calibration\.json: not a calibration"):
        _ = Run.load(tmp_path / "run").calibration


def test_the_size_of_a_gallery() -> None:
    run = trained()
    assert isinstance(run.calibration, Calibration)
    held = {"a": 4, "b": 4, "c": 4}
    assert gallery_size(run.calibration, held) == run.calibration.at(3, 12)
    assert gallery_size(run.calibration, held, ["a"]) == run.calibration.at(1, 4)


def test_unseen_rows_by_name() -> None:
    assert unseen_rows(np.array([0, 1, 2, 1]), ["a", "b", "c"], ["b"]).tolist() == [0, 2]
