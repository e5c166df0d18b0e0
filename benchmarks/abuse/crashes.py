"""Kill training at any point, resume it, and compare the result bit for bit with an uninterrupted run."""

import itertools
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.abuse.children import Ending, Fault, refused
from benchmarks.abuse.runs import Scenario, scenarios

WHERE = (
    (r"\.pt$|checkpoints", "checkpoint"),
    (r"log\.jsonl", "log"),
    (r"safetensors|encoder", "encoder and centres"),
    (r"\.json$|\.html$", "report"),
    (r"images|pixels|index|trunk|\.npy$|^\w+ \.partial$|cache", "caches"),
)


def crash_matrix(folder: Path, *, kills: int) -> dict[str, Any]:
    """Kill ``kills`` runs at random moments, a third of them twice, and as many per scenario at random events."""
    trials: Counter[str] = Counter()
    places: Counter[str] = Counter()
    failures: list[str] = []
    generator = np.random.default_rng(0)
    for scenario in scenarios(folder):
        trace: list[str] = []
        uninterrupted = scenario.train("uninterrupted", trace=trace)
        assert uninterrupted.status == 0, uninterrupted.err
        expected = scenario.result("uninterrupted")

        for number in range(kills // 2):
            deaths = []
            scenario.forget("killed")
            for _ in range(1 + number % 3 // 2):
                moment = float(generator.uniform(0, uninterrupted.seconds))
                ending = scenario.train("killed", "--resume", kill_after=moment)
                deaths.append(f"{moment:.2f} s")
                trials["SIGKILL at a random moment"] += ending.signal == signal.SIGKILL
                places["between writes" if ending.signal else "after the end"] += 1
            failures += _resume(scenario, expected, f"killed at {', '.join(deaths)}")

        kinds = ("kill", "torn", "power")
        drawn = generator.permutation(list(itertools.product(range(1, len(trace) + 1), kinds)))[:kills]
        for event, kind in drawn.tolist():
            fault = Fault(int(event), kind)
            scenario.forget("killed")
            ending = scenario.train("killed", fault=fault)
            what = trace[fault.event - 1]
            trials[{"kill": "before a write", "torn": "halfway through a write", "power": "power loss"}[kind]] += 1
            places[next((name for pattern, name in WHERE if re.search(pattern, what)), "other")] += 1
            if ending.signal != signal.SIGKILL:
                failures.append(f"{scenario.name}: {fault} did not kill: {ending.err[-300:]}")
            failures += _resume(scenario, expected, f"{fault}, {what}")
    return {"trials": dict(trials), "places": dict(places), "identical": not failures, "failures": failures}


def locks(folder: Path) -> dict[str, Any]:
    """Start a second process in a run directory: an error while the first is alive, accepted once it is dead."""
    scenario = scenarios(folder)[0]
    scenario.forget("shared")
    others: list[Ending] = []

    def start_another() -> None:
        others.extend([scenario.train("shared", *more) for more in ([], ["--resume"])])

    first = scenario.train("shared", fault=Fault(60, "stop"), meanwhile=start_another)
    after = scenario.train("shared", "--resume")
    failures = []
    if first.signal != signal.SIGKILL or len(others) != 2:
        failures.append(f"the first process was not stopped: {first}")
    failures += [
        f"no error: {other}"
        for other, reason in zip(others, ("already exists", "another process"), strict=True)
        if not refused(other, reason)
    ]
    if after.status != 0:
        failures.append(f"the lock of a dead process is still held: {after.err}")
    return {"trials": {"a second process in a run directory": len(others)}, "failures": failures}


def _resume(scenario: Scenario, expected: dict[str, str], what: str) -> list[str]:
    ending = scenario.train("killed", "--resume")
    if ending.status != 0:
        return [f"{scenario.name}, {what}: does not resume: {ending.err[-500:]}"]
    result = scenario.result("killed")
    different = [name for name in expected if result.get(name) != expected[name]]
    return [f"{scenario.name}, {what}: differs in {', '.join(different)}"] if different else []
