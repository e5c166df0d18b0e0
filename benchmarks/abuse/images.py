"""Broken and hostile images in train, embed and index: stop or skip as requested; never crash, hang or leak memory."""

import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.abuse.children import Ending, refused, run, softtriple
from benchmarks.abuse.mutants import bombs, mutant, pictures

CLASSES = 4
NOBODY = 65_534
SMALL = ("--backbone", "conv-small", "--epochs", "1", "--dim", "8", "--set", "model.trainable=all")


def mutated_images(folder: Path, *, count: int) -> dict[str, Any]:
    """Decode ``count`` mutants three times; check the outcomes, the slowest image and the growth of memory."""
    _fresh(folder)
    seeds, generator = pictures(), np.random.default_rng(2)
    files = []
    for number in range(count):
        suffix = list(seeds)[number % len(seeds)]
        files.append(folder / f"{number}{suffix}")
        files[-1].write_bytes(mutant(seeds[suffix], generator))
    results = folder / "results"

    def decode_all() -> None:
        import gc
        import warnings

        from softtriple.data.images import ImageError, decode_image

        warnings.simplefilter("ignore")
        outcomes: Counter[str] = Counter()
        memory, slowest = [], 0.0
        for _ in range(3):
            for file in files:
                start = time.perf_counter()
                try:
                    decode_image(str(file))
                    outcomes["decoded"] += 1
                except ImageError:
                    outcomes["refused"] += 1
                slowest = max(slowest, time.perf_counter() - start)
            gc.collect()
            memory.append(resident_megabytes())
        results.write_text(f"{outcomes['decoded'] // 3} {outcomes['refused'] // 3} {slowest} {memory[-1] - memory[0]}")

    ending = run(decode_all, limit=300)
    if ending.status != 0:
        return {"trials": {"mutated images": count}, "failures": [f"{ending.signal} {ending.err[-500:]}"]}
    decoded, refusals, slowest, growth = map(float, results.read_text().split())
    failures = [f"memory grew by {growth:.1f} MB in two more passes"] if growth > 20 else []
    failures += [f"an image took {slowest:.1f} s"] if slowest > 5 else []
    return {
        "trials": {"mutated images, decoded three times": count},
        "decoded": int(decoded),
        "refused": int(refusals),
        "slowest, s": round(slowest, 3),
        "memory growth from the first to the third pass, MB": round(growth, 1),
        "failures": failures,
    }


def hostile_folder(folder: Path, *, count: int) -> dict[str, Any]:
    """The verbs on class folders with good images, mutants, bombs, pipes, symlink loops and strange names."""
    _fresh(folder)
    data = folder / "data"
    bad = _fill(data, count)
    failures: list[str] = []

    stopped = _train(folder, data, "stopped", "stop")
    if not refused(stopped, re.escape(str(data))):
        failures.append(f"train --on-error stop: {stopped.status} {stopped.err[-500:]}")
    skipped = _train(folder, data, "skipped", "skip")
    listed = _listed(skipped)
    if skipped.status != 0 or len(listed) < bad:
        failures.append(f"train --on-error skip: {skipped.status}, {len(listed)} listed: {skipped.err[-500:]}")

    out = folder / "embedded.npz"
    verbs = {"embed": ("--out", out), "index": ("--store", folder / "store")}
    for verb, more in verbs.items():
        arguments = (verb, folder / "skipped", data, *more)
        # The run skipped unreadable files, and would do so again by default on its own data.
        stopped = softtriple(*arguments, "--on-error", "stop", cache=folder / "cache")
        if not refused(stopped, re.escape(str(data))):
            failures.append(f"{verb} --on-error stop: {stopped.status} {stopped.err[-500:]}")
        skipped = softtriple(*arguments, "--on-error", "skip", cache=folder / "cache", limit=300)
        if skipped.status != 0 or _listed(skipped) != listed:
            failures.append(f"{verb} --on-error skip: {skipped.status} {skipped.signal} {skipped.err[-500:]}")
    if out.exists():
        with np.load(out) as file:
            names = file["class_names"][file["labels"]]
            folders = [Path(path).parent.name for path in file["paths"]]
            if folders != names.tolist() or len(file["vectors"]) != len(folders):
                failures.append("embed --on-error skip: labels, paths and vectors are not aligned")
    return {
        "trials": {"hostile files in class folders": bad, "verbs on them": 2 + 2 * len(verbs)},
        "listed with a reason": len(listed),
        "failures": failures,
    }


def unreadable(folder: Path) -> dict[str, Any]:
    """Read a file without read permission, as a user other than root."""
    _fresh(folder)
    folder.chmod(0o755)
    for name, mode in (("open.png", 0o644), ("closed.png", 0o000)):
        (folder / name).write_bytes(pictures()[".png"])
        (folder / name).chmod(mode)

    def read() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        from softtriple.data.images import decode_image

        decode_image(str(folder / "open.png"))
        decode_image(str(folder / "closed.png"))

    ending = run(read)
    named = re.search(r"closed\.png: .*Permission denied", ending.err)
    return {"trials": {"files without read permission": 1}, "failures": [] if named else [ending.err[-500:]]}


def resident_megabytes() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _fill(data: Path, count: int) -> int:
    """Write good and bad images to class folders; return the number that are certainly bad."""
    seeds, generator, good = pictures(), np.random.default_rng(3), pictures()[".png"]
    places = [data / str(label) for label in range(CLASSES)]
    for place in places:
        place.mkdir(parents=True)
        for number in range(6):
            (place / f"good-{number}.png").write_bytes(good)
        (place / "name with\nline break and \x1b[31m colour.png").write_bytes(good)
        (place / "empty.jpg").touch()
        (place / "text\n.jpg").write_text("not an image")
        (place / "postscript.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        os.mkfifo(place / "pipe.png")
        (place / "loop.png").symlink_to("loop.png")
        (place / "nowhere.png").symlink_to("does not exist")
        (place / "device.png").symlink_to("/dev/zero")
        (place / "folder.png").mkdir()
        Path(os.fsdecode(os.fsencode(place) + b"/\xff\xfe.png")).write_bytes(good)
        for name, content in bombs().items():
            (place / f"bomb-{name}").write_bytes(content)
    for number in range(count):
        suffix = list(seeds)[number % len(seeds)]
        (places[number % CLASSES] / f"mutant-{number}{suffix}").write_bytes(mutant(seeds[suffix], generator))
    (data / "circle").symlink_to("circle")
    return CLASSES * (9 + len(bombs()) - 1)  # the image after a compressed text chunk may still be good


def _train(folder: Path, data: Path, name: str, on_error: str) -> Ending:
    arguments = ("train", data, "--out", folder / name, *SMALL, "--on-error", on_error)
    return softtriple(*arguments, cache=folder / "cache", limit=300)


def _listed(ending: Ending) -> list[str]:
    return [line for line in ending.err.splitlines() if line.startswith("skipped: ") and ": " in line[9:]]


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
