"""Full disks under every verb that writes: a one-line error with exit status 1, and the same result after resuming."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.abuse.children import Fault, refused, run, softtriple
from benchmarks.abuse.runs import Scenario, result, scenarios

WRITING = ("open", "write", "fsync", "mkdir")
FULL = "No space left on device|os error 28"
ENOUGH = 64_000
CLONE_NEWNS, CLONE_NEWUSER, MS_REMOUNT = 0x00020000, 0x10000000, 32


def injected(folder: Path, *, times: int) -> dict[str, Any]:
    """Report a full disk from a random event on, then resume with free space."""
    failures, trials = [], 0
    generator = np.random.default_rng(1)
    for scenario in scenarios(folder):
        trace: list[str] = []
        scenario.forget("whole")
        assert scenario.train("whole", trace=trace).status == 0
        expected = scenario.result("whole")
        writes = [event for event, what in enumerate(trace, 1) if what.split()[0] in WRITING]
        for event in generator.permutation(writes)[: times // 2].tolist():
            scenario.forget("full")
            ending = scenario.train("full", fault=Fault(event, "full"))
            trials += 1
            if not refused(ending, FULL):
                failures.append(f"{scenario.name}, full at {trace[event - 1]}: {ending.status} {ending.err[-500:]}")
            failures += _after(scenario, "full", expected, trace[event - 1])
    return {"trials": {"injected: disk full from a random write on": trials}, "failures": failures}


def real(folder: Path, *, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Train and embed on file systems of ``sizes`` kilobytes, each in its own namespace; then enlarge them."""
    failures: list[str] = []
    trials = 0
    for scenario in scenarios(folder):
        scenario.forget("whole")
        assert scenario.train("whole").status == 0
        for size in sizes:
            outcome = scenario.folder / "outcome"
            outcome.unlink(missing_ok=True)
            ending = run(lambda s=scenario, k=size, o=outcome: _on_small_disk(s, k, o))
            if ending.status != 0 or not outcome.exists():
                return {"trials": {}, "failures": [], "not possible here": ending.err.strip().splitlines()[-1:]}
            count, *messages = outcome.read_text().splitlines()
            trials += int(count)
            failures += messages
    return {"trials": {"full file systems": trials}, "failures": failures}


def ranks(folder: Path, *, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Train with two ranks on file systems of ``sizes`` kilobytes, too small for the centres; then enlarge them."""
    scenario = scenarios(folder)[0]
    wide = scenario._replace(settings=(*scenario.settings, "model.dim=4096", "train.epochs=1"))
    failures: list[str] = []
    for size in sizes:
        outcome = scenario.folder / "outcome"
        outcome.unlink(missing_ok=True)
        ending = run(lambda k=size, o=outcome: _ranks_on_small_disk(wide, k, o))
        if ending.status != 0 or not outcome.exists():
            return {"trials": {}, "failures": [], "not possible here": ending.err.strip().splitlines()[-1:]}
        failures += outcome.read_text().splitlines()
    return {"trials": {"full file systems under two ranks": len(sizes)}, "failures": failures}


def _ranks_on_small_disk(scenario: Scenario, kilobytes: int, outcome: Path) -> None:
    place = scenario.folder / "small"
    place.mkdir(exist_ok=True)
    _mount(place, kilobytes)
    (place / "run").mkdir()
    settings = [word for setting in scenario.settings for word in ("--set", setting)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "softtriple", "train", scenario.data, "--out", place / "run", "--resume", *settings]
    failures = []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 1 or not re.search(rf"^softtriple: .*({FULL})", done.stderr, re.MULTILINE):
        failures.append(f"two ranks, {kilobytes} KB: {done.returncode} {done.stderr[-2000:]!r}")
    _mount(place, ENOUGH, MS_REMOUNT)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        failures.append(f"two ranks, {kilobytes} KB: does not resume: {done.stderr[-2000:]!r}")
    outcome.write_text("\n".join(failures))


def _on_small_disk(scenario: Scenario, kilobytes: int, outcome: Path) -> None:
    place = scenario.folder / "small"
    place.mkdir(exist_ok=True)
    _mount(place, kilobytes)
    small = scenario._replace(folder=place)
    expected, failures, trials = scenario.result("whole"), [], 0
    ending = small.train("run")
    if ending.status != 0:
        trials += 1
        if not refused(ending, FULL):
            failures.append(f"{scenario.name}, {kilobytes} KB: {ending.status} {ending.signal} {ending.err[-500:]}")
    _mount(place, ENOUGH, MS_REMOUNT)
    failures += _after(small, "run", expected, f"{kilobytes} KB")
    for kind in ("npz", "parquet"):
        out = place / f"embedded.{kind}"
        usage = os.statvfs(place)
        used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize // 1024
        for size in (used, ENOUGH):
            _mount(place, size, MS_REMOUNT)
            ending = softtriple("embed", place / "run", scenario.data, "--out", out, cache=place / "run-cache")
            full = size < ENOUGH and refused(ending, FULL) and not out.exists()
            if not full and not (size == ENOUGH and ending.status == 0 and out.exists()):
                failures.append(f"embed to {out.name} with {size - used} KB: {ending.status} {ending.err[-500:]}")
            trials += size < ENOUGH
    outcome.write_text("\n".join([str(trials), *failures]))


def _after(scenario: Scenario, name: str, expected: dict[str, str], what: str) -> list[str]:
    ending = scenario.train(name, "--resume")
    if ending.status != 0:
        return [f"{scenario.name}, disk full at {what}: does not resume: {ending.err[-500:]}"]
    resumed = result(scenario.folder / name)
    different = [key for key in expected if resumed.get(key) != expected[key]]
    return [f"{scenario.name}, disk full at {what}: differs in {', '.join(different)}"] if different else []


def _mount(place: Path, kilobytes: int, flags: int = 0) -> None:
    """Mount a file system of ``kilobytes`` at ``place``, visible only to this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if not flags:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "cannot create a mount namespace")
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(line)
    if libc.mount(b"none", bytes(place), b"tmpfs", flags, f"size={kilobytes}k".encode()):
        raise OSError(ctypes.get_errno(), "cannot mount a small tmpfs")
