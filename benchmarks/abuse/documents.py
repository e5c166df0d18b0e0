"""Mutated tables, vectors, configurations, encoders and checkpoints: read correctly, or a one-line error.

Also files that would run code if anything unpickled them.
"""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import pickle
import resource
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.abuse.children import run
from benchmarks.abuse.mutants import mutant, pictures
from benchmarks.abuse.runs import scenarios

MEMORY = 6 << 30


class Target(NamedTuple):
    """A file to mutate, and the verb that reads it."""

    file: Path
    command: list[str]
    named: str  # what an error message must contain: the file, or its folder


def mutated_documents(folder: Path, *, count: int) -> dict[str, Any]:
    """``count`` mutants of each kind of file; where the format allows, half are well-formed with a wrong value."""
    shutil.rmtree(folder, ignore_errors=True)
    trials: dict[str, int] = {}
    outcomes = {"refused": 0, "read": 0}
    failures: list[str] = []
    peak = 0
    for target in _targets(folder):
        out = folder / "results.json"
        out.unlink(missing_ok=True)
        ending = run(lambda t=target, o=out: _try_all(t, count, o), limit=600)
        if ending.status != 0:
            failures.append(f"{target.file.name}: {ending.signal or ending.status} {ending.err[-700:]}")
            continue
        results = json.loads(out.read_text())
        trials[f"mutants of {target.file.name}"] = results["refused"] + results["read"] + len(results["failures"])
        for name in outcomes:
            outcomes[name] += results[name]
        failures += results["failures"]
        peak = max(peak, results["peak"])
    return {"trials": trials, **outcomes, "peak memory, MB": round(peak / 1e3), "failures": failures}


def wrong_settings(folder: Path, *, share: float) -> dict[str, Any]:
    """Invalid and absurd values for every setting of a run; ``share`` of all combinations is tried."""
    shutil.rmtree(folder, ignore_errors=True)
    both, out = scenarios(folder), folder / "results.json"
    generator = np.random.default_rng(6)

    def try_all() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.environ["SOFTTRIPLE_CACHE"] = str(folder / "cache")
        results: dict[str, Any] = {"refused": 0, "done": 0, "failures": []}
        values = ("true", "nan", "inf", *NUMBERS, "", "x", "[]", "[-1]", "{}", "[1e9]")
        for scenario, name, value in itertools.product(both, _settings(), values):
            if generator.random() > share or (name == "train.epochs" and value in (10**9, 2**62, 10**30)):
                continue
            sys.stderr.write(f"{scenario.name}: {name}={value}\n")
            settings = [*scenario.settings, "train.epochs=1", f"{name}={value}"]
            changes = [word for setting in settings for word in ("--set", setting)]
            status, err = _call(["train", str(scenario.data), "--out", "NEW", *changes])
            explained = err.strip().splitlines()[-1].startswith("softtriple: ")
            if status == 0 or (status == 1 and explained and "Traceback" not in err):
                results["refused" if status else "done"] += 1
            else:
                results["failures"].append(f"{scenario.name}: {name}={value}: status {status}: {err[-600:]}")
        out.write_text(json.dumps(results))

    ending = run(try_all, limit=1200)
    if ending.status != 0:
        return {"trials": {}, "failures": [f"{ending.signal or ending.status} {ending.err[-700:]}"]}
    results = json.loads(out.read_text())
    failures = results.pop("failures")
    return {
        "trials": {"settings with invalid or absurd values": sum(results.values())},
        **results,
        "failures": failures,
    }


def _settings() -> list[str]:
    from softtriple.config import Config

    groups = dataclasses.asdict(Config())
    return [f"{group}.{key}" for group, table in groups.items() if isinstance(table, dict) for key in table]


def pickles(folder: Path) -> dict[str, Any]:
    """Files that would create a marker file if unpickled, in every place that reads files."""
    shutil.rmtree(folder, ignore_errors=True)
    targets = {target.file.name: target for target in _targets(folder)}
    marker = folder / "marker"
    evil = pickle.dumps(_Evil(str(marker)))
    failures: list[str] = []
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    weights = io.BytesIO()
    with zipfile.ZipFile(weights, "w") as archive:
        archive.writestr("archive/data.pkl", evil)
        archive.writestr("archive/version", "3\n")
    bundle = io.BytesIO()
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("vectors.npy", array.getvalue() + evil)
        archive.writestr("labels.npy", array.getvalue() + evil)
    (folder / "weights.pth").write_bytes(weights.getvalue())
    checkpoint = next(name for name in targets if name.endswith(".pt"))
    cases: list[tuple[Path, bytes, list[str]]] = [
        (targets["vectors.npz"].file, bundle.getvalue(), targets["vectors.npz"].command),
        (targets["model.safetensors"].file, weights.getvalue(), targets["model.safetensors"].command),
        (targets["model.safetensors"].file, evil, targets["model.safetensors"].command),
        (targets[checkpoint].file, weights.getvalue(), targets[checkpoint].command),
        (targets[checkpoint].file, evil, targets[checkpoint].command),
        (folder / "weights.pth", weights.getvalue(), _from_weights(folder)),
        (folder / "weights.pth", evil, _from_weights(folder)),
    ]
    for file, content, command in cases:
        out = folder / "results.json"
        out.unlink(missing_ok=True)
        with _replaced(file, content):
            ending = run(lambda c=command, o=out: o.write_text(json.dumps(_call(c))))
        if ending.status != 0:
            failures.append(f"{file.name}: {ending.err[-500:]}")
        elif json.loads(out.read_text())[0] != 1:
            failures.append(f"{file.name}: no error: {out.read_text()}")
        if marker.exists():
            failures.append(f"{file.name}: was unpickled")
            marker.unlink()
    pickle.loads(evil)
    if not marker.exists():
        failures.append("unpickling does not create the marker, so this trial proves nothing")
    return {"trials": {"files that would run code": len(cases)}, "failures": failures}


class _Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, int]]:
        return os.open, (self.path, os.O_CREAT)


def _targets(folder: Path) -> list[Target]:
    scenario = scenarios(folder)[0]
    ending = scenario.train("run")
    assert ending.status == 0, ending.err
    place = scenario.folder / "run"
    vectors = folder / "vectors.npz"
    parquet = folder / "vectors.parquet"
    _embed(place, vectors, parquet)
    table = _table(folder)
    rows = table.with_suffix(".parquet")
    checkpoint = max((place / "checkpoints").glob("epoch-*.pt"))
    embed = ["embed", str(place), str(vectors), "--out", str(folder / "out.npz")]
    train = ["train", str(vectors), "--out", str(place)]
    settings = [word for setting in scenario.settings for word in ("--set", setting)]
    small = ["--backbone", "conv-small", "--epochs", "0", "--set", "data.cache_gigabytes=0", "--set", "model.dim=4"]
    return [
        Target(vectors, ["evaluate", str(vectors)], str(vectors)),
        Target(parquet, ["evaluate", str(parquet)], str(parquet)),
        Target(table, ["train", str(table), "--out", "NEW", *small], ""),
        Target(rows, ["train", str(rows), "--out", "NEW", *small], ""),
        Target(place / "config.toml", ["evaluate", str(place)], ""),
        Target(place / "encoder" / "encoder.json", embed, str(place)),
        Target(place / "encoder" / "model.safetensors", embed, str(place)),
        Target(place / "centers.safetensors", ["centers", str(place)], str(place)),
        Target(place / "log.jsonl", [*train, "--resume", *settings], ""),
        Target(checkpoint, [*train, "--resume", *settings], str(checkpoint)),
    ]


def _embed(place: Path, vectors: Path, parquet: Path) -> None:
    def verb() -> None:
        assert _call(["embed", str(place), str(vectors), "--out", str(parquet)])[0] == 0

    assert run(verb).status == 0


def _table(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [(f"{number}.png", f"class {number % 4}") for number in range(12)]
    for name, _ in rows:
        (folder / name).write_bytes(pictures()[".png"])
    table = folder / "table.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])
    columns = {"path": [row[0] for row in rows], "label": [row[1] for row in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), table.with_suffix(".parquet"))
    return table


def _from_weights(folder: Path) -> list[str]:
    weights = f"model.weights={folder / 'weights.pth'}"
    return ["train", str(folder / "table.csv"), "--out", "NEW", "--backbone", "bn-inception", "--set", weights]


def _try_all(target: Target, count: int, out: Path) -> None:
    """Mutate the file, run the verb and judge how it ended; in a child, which a mutant may kill."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    content = target.file.read_bytes()
    results: dict[str, Any] = {"refused": 0, "read": 0, "failures": []}
    generator = np.random.default_rng(4)
    for number in range(count):
        changed = _wrong_value(target.file, content, generator) if number % 2 else None
        sys.stderr.write(f"{target.file.name} {number}\n")
        with _replaced(target.file, changed or mutant(content, generator)):
            status, err = _call(target.command)
        last = err.strip().splitlines()[-1] if err.strip() else ""
        named = last.startswith("softtriple: ") and target.named in last
        if status == 0:
            results["read"] += 1
        elif status == 1 and named and "Traceback" not in err:
            results["refused"] += 1
        else:
            results["failures"].append(f"{target.file.name} {number}: status {status}: {err[-900:]}")
    results["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out.write_text(json.dumps(results))


def _call(command: list[str]) -> tuple[int, str]:
    """Run a verb in this process and return its exit status and standard error; NEW becomes a new folder."""
    from softtriple.cli import main

    new = Path(os.environ.get("TMPDIR", "/tmp")) / f"abuse-{os.getpid()}"
    shutil.rmtree(new, ignore_errors=True)
    sys.argv = ["softtriple", *(str(new) if word == "NEW" else word for word in command)]
    err = io.StringIO()
    status = 0
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
            status = 99
    shutil.rmtree(new, ignore_errors=True)
    return status, err.getvalue()


@contextlib.contextmanager
def _replaced(file: Path, content: bytes) -> Iterator[None]:
    """Replace the content of ``file`` within the block."""
    original = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(original)


NUMBERS = (-1, 0, 1, 10**9, 2**62, 10**30, -0.5, 1e-300, 1e308)
VALUES: tuple[Any, ...] = (None, True, *NUMBERS, "", "x", "../..", "\x00", [], [[]], {}, {"a": 1})


def _wrong_value(file: Path, content: bytes, generator: np.random.Generator) -> bytes | None:
    """A well-formed document with one value changed, or None if the format has no such form."""
    value = VALUES[int(generator.integers(len(VALUES)))]
    match file.suffix:
        case ".json":
            document = json.loads(content)
            _change(document, value, generator)
            return json.dumps(document).encode()
        case ".toml":
            lines = content.decode().splitlines()
            places = [number for number, line in enumerate(lines) if " = " in line]
            place = places[int(generator.integers(len(places)))]
            lines[place] = lines[place].partition(" = ")[0] + " = " + json.dumps(value)
            return "\n".join(lines).encode()
        case ".npz":
            with np.load(io.BytesIO(content)) as arrays:
                changed = dict(arrays)
            name = str(generator.choice(list(changed)))
            odd = [np.array([]), np.array(3.5), np.full((120, 8), np.nan), np.zeros((120, 0)), changed[name][:-1]]
            odd += [np.array(["a"] * 120), np.full(120, -(2**62)), np.full((120, 2), 1e300), changed[name][None]]
            changed[name] = odd[int(generator.integers(len(odd)))]
            out = io.BytesIO()
            np.savez(out, **changed)
            return out.getvalue()
        case _:
            return None


def _change(document: Any, value: Any, generator: np.random.Generator) -> None:
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = keys[int(generator.integers(len(keys)))]
    if isinstance(document[key], dict | list) and document[key] and generator.random() < 0.8:
        _change(document[key], value, generator)
    else:
        document[key] = value
