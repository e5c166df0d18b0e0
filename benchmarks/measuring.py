"""How benchmarks here measure: medians of interleaved calls, memory in a process of its own, results with a date."""

import json
import os
import platform
import resource
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
    """Median seconds of each function, called in turn so that a busy neighbour disturbs all of them alike."""
    for function in functions.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, taken.values())) < at_least:
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def resident_bytes() -> int:
    """Memory this process holds now."""
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Most memory this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_alone(script: str, *arguments: str, threads: int | None = None) -> Any:
    """The JSON that ``script`` prints last when it runs in a process of its own."""
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    command = [sys.executable, script, *arguments]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{finished.stderr}")
    return json.loads(finished.stdout.splitlines()[-1])


def machine(*packages: str) -> dict[str, Any]:
    """Date, hardware and versions: what a result means nothing without."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def save(name: str, where: dict[str, Any], rows: list[dict[str, Any]], text: str) -> None:
    """Write the results twice: for programs as JSON, for people as Markdown."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": where, "rows": rows}, indent=1) + "\n")
    described = ", ".join(f"{key} {value}" for key, value in where.items())
    (RESULTS / f"{name}.md").write_text(f"`python benchmarks/{name}.py`: {described}\n\n{text}\n")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
