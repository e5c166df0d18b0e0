"""examples/two_ranks.py in two processes; tests/test_examples.py starts it with torchrun."""

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from tests.distributed.workers import Workers

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_ranks.py"


def output() -> str:
    with redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(EXAMPLE))["main"]()
    return out.getvalue()


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"batch (\S+)", text)]


def test_two_processes_compute_the_same_as_one(workers: Workers) -> None:
    first, second = workers.run(2, output)
    alone = output()
    assert second == ""
    assert "1 ranks, 10 of 10 classes on this one" in alone
    assert "2 ranks, 5 of 10 classes on this one" in first
    assert len(losses(first)) == 5
    assert losses(first) == pytest.approx(losses(alone), abs=2e-3)  # only the order of summation differs
