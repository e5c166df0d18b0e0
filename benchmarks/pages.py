"""Response times of every request that the gallery's pages make, on a store of 100 000 items with an audit.

The server runs in a process of its own; one client asks for different items, classes and findings over a connection
that stays open. Items are images of 500 × 375 pixels, 1000 different ones, and the encoder is EfficientNet-Lite0;
searches by text ask a second server, whose encoder is the built-in text network. "first" is the first answer, which
may include reading the store. The first request for the classes starts a search for the neighbours of all items in the
background, and that for the comparison, here of the store with itself, compares all items; the others wait here until
it is done. Other load on the machine hardly changes the processor time of the server. Writes results/pages.json and
results/pages.md.

    python benchmarks/pages.py [--items 100000] [--asks 200]
"""

import argparse
import asyncio
import io
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import machine, save, table
from PIL import Image
from serving import DIM, PORT, connect, fill, processor_seconds, summary

CENTERS = 3
PER_CLASS = 100
PHOTOS = 1000
Requests = Callable[[int, str], dict[str, Callable[[], str]]]  # from the number of items and the store's version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--asks", type=int, default=200)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--backbone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Path(options.serve), options.items, options.backbone)
        return
    with tempfile.TemporaryDirectory() as folder:
        fill(f"{folder}/store", options.items, write_photos(Path(folder)))
        write_audit(Path(folder), options.items)
        rows = []
        for backbone, requests in {"efficientnet-lite0": paths, "text": text_paths}.items():
            command = [sys.executable, __file__, "--serve", folder, "--items", str(options.items)]
            server = subprocess.Popen([*command, "--backbone", backbone])
            try:
                rows += asyncio.run(measure(server.pid, requests, options.items, options.asks))
            finally:
                server.terminate()
                server.wait()
    print(text(rows))
    save("pages", machine("torch", "uvicorn", "fastapi"), rows, text(rows))


def photo(number: int) -> bytes:
    """A JPEG file of a smooth random picture."""
    coarse = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90)
    return file.getvalue()


def write_photos(folder: Path) -> list[str]:
    """The paths of ``PHOTOS`` images."""
    paths = [folder / f"{number}.jpg" for number in range(PHOTOS)]
    for number, path in enumerate(paths):
        path.write_bytes(photo(number))
    return list(map(str, paths))


def write_audit(folder: Path, items: int) -> None:
    """One item in twenty is suspect, and one in fifty a copy."""
    draw = random.Random(0)

    def place() -> dict[str, Any]:
        row = draw.randrange(items)
        return {"item": f"{row:07}", "split": "train", "row": row, "label": str(row % (items // PER_CLASS))}

    classes = [str(draw.randrange(items // PER_CLASS)) for _ in range(200)]
    content = {
        "name": "benchmark",
        "items": items,
        "features": "vectors",
        "notes": [],
        "suspects": [
            {**place(), "suggested": classes[row % 200], "odds": 5.0, "wrong": 0.9} for row in range(items // 20)
        ],
        "duplicates": [
            {"how": "exact", "similarity": 1.0, "conflict": True, "leak": row % 2 == 0, "items": [place(), place()]}
            for row in range(items // 100)
        ],
        "leak": {"groups": 0, "test_items": 0, "with": None, "without": None},
        "unreadable": [],
        "odd": [{**place(), "reason": "blank"} for _ in range(items // 1000)],
        "outliers": [],
        "classes": [
            {"kind": "confusable", "classes": list(pair), "value": 0.3} for pair in itertools.pairwise(classes)
        ],
    }
    (folder / "audit.json").write_text(json.dumps(content))


def serve(folder: Path, items: int, backbone: str) -> None:
    import torch

    from softtriple.gallery import Settings, create_app
    from softtriple.gallery.audits import Audits
    from softtriple.gallery.compare import Other
    from softtriple.gallery.server import Server, listen
    from softtriple.gallery.workers import one_core
    from softtriple.models import Encoder, EncoderConfig
    from softtriple.search import open_store, resident

    one_core()  # as `softtriple serve` does
    names = tuple(map(str, range(items // PER_CLASS)))
    encoder = Encoder(EncoderConfig(backbone=backbone, dim=DIM), class_names=names).eval()
    centers = torch.randn(len(names), CENTERS, DIM, generator=torch.Generator().manual_seed(0))
    store = resident(open_store(str(folder / "store"), fingerprint="benchmark"))
    app = create_app(encoder, store, centers, audits=Audits(folder), other=Other(("one", "two"), store))
    with listen("127.0.0.1", PORT) as listening:
        Server(app, Settings()).run(sockets=[listening])


def text_paths(items: int, _: str) -> dict[str, Callable[[], str]]:
    """What the pages ask for if the items are texts and that is not in `paths`."""
    draw = random.Random(0)
    return {"search by text": lambda: f"search/text?text=what+is+the+number+of+item+{draw.randrange(items)}&k=24"}


def paths(items: int, version: str) -> dict[str, Callable[[], str]]:
    """What the pages ask for, by name; each call draws other items."""
    draw = random.Random(0)
    classes = items // PER_CLASS

    def rows(count: int) -> str:
        return "".join(f"&row={draw.randrange(items)}" for _ in range(count))

    return {
        "about": lambda: "about",
        "search: items": lambda: f"items?offset={48 * draw.randrange(100)}",
        "search: class names": lambda: "class-names",
        "search by image": lambda: "search/image?k=24",
        "thumbnail": lambda: f"thumbnail?id={draw.randrange(items):07}",
        "thumbnail, large": lambda: f"thumbnail?id={draw.randrange(items):07}&size=large",
        "item: neighbours": lambda: f"search/item?id={draw.randrange(items):07}&k=24",
        "item: details": lambda: f"item?id={draw.randrange(items):07}",
        "classes": lambda: "classes",
        "class": lambda: f"class?class={draw.randrange(classes)}",
        "class: more items": lambda: f"items?class={draw.randrange(classes)}&offset=24",
        "map": lambda: "map?method=pca",
        "map: state": lambda: "map/state",
        "map: predictions": lambda: f"map/column?column=prediction&version={version}",
        "map: centres": lambda: f"map/column?column=center&version={version}",
        "map: suspects": lambda: f"map/column?column=suspect&version={version}",
        "map: one item": lambda: f"map/items?version={version}{rows(1)}",
        "map: selected items": lambda: f"map/items?version={version}{rows(48)}",
        "audit": lambda: "audit",
        **{
            f"audit: {kind}": lambda kind=kind: f"audit/findings?kind={kind}&offset={24 * draw.randrange(4)}"
            for kind in ("labels", "leaks", "copies", "odd", "classes")
        },
        "compare": lambda: "compare",
    }


# Answers that grow in the background, and when they are complete.
COMPLETE: dict[str, Callable[[dict[str, Any]], bool]] = {
    "classes": lambda answer: answer["measured"] == answer["items"],
    "compare": lambda answer: answer["ready"],
}


async def measure(process: int, requests: Requests, items: int, asks: int) -> list[dict[str, Any]]:
    reader, writer = await asyncio.open_connection(sock=connect())
    photos = map(photo, itertools.count(PHOTOS))  # others than those in the store

    async def ask(path: str) -> tuple[float, bytes]:
        """Seconds and body of an answer; asks again while the server is busy with the first analysis."""
        sent = next(photos) if path.startswith("search/image") else b""
        method = f"POST /api/{path} HTTP/1.1\r\nContent-Length: {len(sent)}" if sent else f"GET /api/{path} HTTP/1.1"
        start = time.perf_counter()
        while True:
            writer.write(f"{method}\r\nHost: localhost\r\n\r\n".encode() + sent)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            body = await reader.readexactly(int(length.split(b":")[1]))
            if head.startswith(b"http/1.1 200"):
                return time.perf_counter() - start, body
            assert head.startswith(b"http/1.1 429"), body
            await asyncio.sleep(0.2)

    _, state = await ask("map/state")
    result = []
    for name, path in requests(items, json.loads(state)["version"]).items():
        first, body = await ask(path())
        extra = {"complete_s": first + await until_complete(ask, name)} if name in COMPLETE else {}
        before = processor_seconds(process)
        taken = [(await ask(path()))[0] for _ in range(asks)]
        used = (processor_seconds(process) - before) / asks * 1e3
        row = summary(taken, sum(taken))
        result.append({"request": name, "first_s": first, **row, "cpu_ms": used, "kB": len(body) / 1e3, **extra})
        print(name, {key: round(value, 2) for key, value in result[-1].items() if key != "request"}, flush=True)
    writer.close()
    return result


async def until_complete(ask: Callable[[str], Awaitable[tuple[float, bytes]]], path: str) -> float:
    """Seconds until the answer is complete."""
    start = time.perf_counter()
    while not COMPLETE[path](json.loads((await ask(path))[1])):
        await asyncio.sleep(0.5)
    return time.perf_counter() - start


def text(rows: list[dict[str, Any]]) -> str:
    cells = [
        [row["request"], *(f"{row[name]:.1f}" for name in ("first_s", "p50_ms", "p95_ms", "cpu_ms", "kB"))]
        for row in rows
    ]
    classes, compare = (next(row["complete_s"] for row in rows if row["request"] == name) for name in COMPLETE)
    note = (
        f"The neighbours of all items are known {classes:.0f} s after the first request for the classes, and the "
        f"comparison {compare:.0f} s after the first request for it."
    )
    return f"{table(['request', 'first, s', 'p50 ms', 'p95 ms', 'server CPU ms per answer', 'kB'], cells)}\n\n{note}"


if __name__ == "__main__":
    main()
