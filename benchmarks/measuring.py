"""What the benchmarks share: medians of interleaved calls, peak memory per process, and dated results."""

import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def interleaved(functions: dict[str, Callable[[], object]], seconds: float, at_least: int = 3) -> dict[str, float]:
    """Median seconds of each function; calls are interleaved so that other load affects all functions alike.

    The order is shuffled in each round, because a function that follows one with large matrices finds a cold cache.
    """
    for function in functions.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in functions}
    order, draw = list(functions), random.Random(0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, taken.values())) < at_least:
        draw.shuffle(order)
        for name in order:
            start = time.perf_counter()
            functions[name]()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def reset_peak_memory() -> int:
    """Reset this process's peak resident memory (Linux only) and return its current one, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_memory() -> int:
    """Peak resident memory of this process since the last reset, in bytes."""
    return _status("VmHWM")


def run_alone(script: str, *arguments: str, threads: int | None = None) -> Any:
    """Run ``script`` in a separate process and parse the last line it prints as JSON."""
    environment = dict(os.environ)
    if threads:
        environment |= {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    command = [sys.executable, script, *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{finished.stderr}")
    return json.loads(finished.stdout.splitlines()[-1])


def machine(*packages: str) -> dict[str, Any]:
    """Date, hardware and versions, recorded with every result."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def save(name: str, where: dict[str, Any], rows: list[dict[str, Any]], text: str) -> None:
    """Write the results as JSON and as Markdown."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")
    described = ", ".join(f"{key} {value}" for key, value in where.items())
    # Where data are on this machine is of no use to others.
    arguments = [re.sub(r"[^\s:]*/", "", argument) for argument in sys.argv[1:]]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])
    (RESULTS / f"{name}.md").write_text(f"`{command}`: {described}\n\n{text}\n")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _status(field: str) -> int:
    return next(int(line.split()[1]) * 1024 for line in _lines("/proc/self/status") if line.startswith(field))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
