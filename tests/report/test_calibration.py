"""The calibration in a report and as a figure."""

import numpy as np
import pytest

from softtriple.errors import UserError
from softtriple.progress import Reporter
from softtriple.report import write_calibration, write_page
from softtriple.report.calibration import describe, draw_calibration
from softtriple.report.charts import svg
from softtriple.training import Run, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    values = 3 * random.standard_normal((12, 8))[labels] + random.standard_normal((72, 8))
    out = tmp_path_factory.mktemp("runs") / "run"
    return train((values.astype(np.float32), labels), out=out, epochs=1, dim=4, reporter=Reporter(quiet=True))


def test_the_section_has_the_numbers(run: Run) -> None:
    assert run.calibration is not None
    section = describe(run.calibration)
    assert f"{run.calibration.threshold:.3f}" in section.verdict
    assert len(section.charts) == 2
    assert {title: value for title, value, _ in section.rows}["Threshold"] == f"{run.calibration.threshold:.3f}"


def test_a_later_calibration_replaces_the_section_alone(run: Run) -> None:
    page = write_page(run, command="softtriple train x")
    before = page.read_text()
    assert run.calibration is not None
    assert f"below {run.calibration.threshold:.3f}" in before
    made = run.calibrate(far=0.3)
    assert page in write_calibration(run)
    after = page.read_text()
    assert f"below {made.threshold:.3f}" in after
    assert after.count("None of these</h2>") == 1
    assert "softtriple train x" in after
    assert run.directory is not None
    assert "<svg" in run.directory.calibration_figure.read_text()


def test_a_page_without_a_calibration(run: Run) -> None:
    run.calibration, kept = None, run.calibration
    page = write_page(run, command="x")
    assert "None of these</h2>" not in page.read_text()
    with pytest.raises(UserError, match="calibrate"):
        write_calibration(run)
    run.calibration = kept
    assert page in write_calibration(run)
    assert "None of these</h2>" in page.read_text()


def test_the_figure_is_the_same_twice(run: Run) -> None:
    assert run.calibration is not None
    assert svg(draw_calibration(run.calibration)) == svg(draw_calibration(run.calibration))
