"""The robustness trials of ``make abuse`` with a few repetitions each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Run all trials in a separate process: they fork, which is safe only in a process that never started a thread."""
    command = [sys.executable, "-m", "benchmarks.abuse", "--quick", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    outcomes: dict[str, Any] = json.loads(done.stdout)
    return outcomes


@pytest.mark.parametrize(
    "name",
    [
        "crashes",
        "locks",
        "injected full disk",
        "real full disk",
        "mutated images",
        "hostile folder",
        "unreadable",
        "mutated documents",
        "wrong settings",
        "pickles",
    ],
)
def test_nothing_fails(results: dict[str, Any], name: str) -> None:
    assert results[name]["failures"] == []
    if "not possible here" not in results[name]:
        assert sum(results[name]["trials"].values()) > 0
