"""The quick form of ``make abuse``: every trial a few times, none may fail."""

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
    """All trials in a process of their own, which forks: that is safe only where no thread has ever run."""
    command = [sys.executable, "-m", "benchmarks.abuse", "--quick", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "crashes",
        "locks",
        "injected full disk",
        "real full disk",
        "mutated pictures",
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
