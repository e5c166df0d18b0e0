"""Latency and recall@10 of searching a store one query at a time, with faiss for comparison.

Queries are unseen vectors of the stored classes. The variants take turns, in an order shuffled for each query, so that
other load on the machine affects all of them alike. Writes results/search.json and results/search.md.

    python benchmarks/search.py [--items 100000] [--milvus-items 10000] [--queries 200]
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from evaluate import sample
from measuring import machine, save, table

from softtriple.search import Item, Store, nearest, open_store

DIM = 64
ITEMS_PER_CLASS = 100
NOISE = 1.2  # around class centres, as in evaluate.py
K = 10
ITEMS_PER_WRITE = 2000

# Maps a query to the ids of its neighbours, best first.
Variant = Callable[[np.ndarray], list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--milvus-items", type=int, default=10_000, help="items for Milvus Lite; 0 skips it")
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        rows += compare(options.items, options.queries, {"LanceDB": str(Path(folder) / "lance")})
        if options.milvus_items:
            places = {"LanceDB": str(Path(folder) / "small"), "Milvus Lite": str(Path(folder) / "milvus.db")}
            rows += compare(options.milvus_items, options.queries, places)
    print(text(rows))
    save("search", machine("lancedb", "pymilvus", "milvus-lite", "faiss-cpu", "torch", "numpy"), rows, text(rows))


def compare(count: int, num_queries: int, places: dict[str, str]) -> list[dict[str, Any]]:
    """Compare every store with and without its index, and faiss, on the same items and queries."""
    vectors, labels = sample(count + num_queries, DIM, count // ITEMS_PER_CLASS, NOISE)
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(1))
    stored, asked = order[num_queries:], order[:num_queries]
    gallery, queries = vectors[stored].numpy(), vectors[asked].numpy()
    paths = [f"/photos/{row:07}.jpg" for row in range(count)]
    items = [Item(path, label, str(label), path) for path, label in zip(paths, labels[stored].tolist(), strict=True)]

    flat = faiss.IndexFlatIP(DIM)
    flat.add(gallery)
    variants: dict[str, Variant] = {
        "faiss flat": lambda query: [paths[row] for row in flat.search(query[None], K)[1][0]]
    }
    made: dict[str, dict[str, float]] = {}
    stores = []
    for name, place in places.items():
        store = open_store(place, fingerprint="benchmark", dim=DIM, create=True)
        stores.append(store)
        made[f"{name}, index"] = {
            "write_seconds": timed(fill, store, items, gallery),
            "index_seconds": timed(store.build_index, "approximate"),
        }
        variants[f"{name}, index"] = partial(ids_of, store, exact=False)
        variants[f"{name}, exact"] = partial(ids_of, store, exact=True)

    seconds, answers = ask(variants, queries)
    exact = nearest(torch.from_numpy(queries), torch.from_numpy(gallery), K).rows.tolist()
    truth = [[paths[row] for row in rows] for rows in exact]
    for store in stores:
        store.close()
    return [
        {
            "items": count,
            "variant": name,
            "p50_ms": float(np.percentile(seconds[name], 50)) * 1e3,
            "p95_ms": float(np.percentile(seconds[name], 95)) * 1e3,
            "recall_at_10": recall(answers[name], truth),
            **made.get(name, {}),
        }
        for name in variants
    ]


def ask(variants: dict[str, Variant], queries: np.ndarray) -> tuple[dict[str, list[float]], dict[str, list[list[str]]]]:
    """The seconds and the answers of each variant for each query."""
    for variant in variants.values():
        for query in queries[:5]:
            variant(query)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    answers: dict[str, list[list[str]]] = {name: [] for name in variants}
    order, draw = list(variants), random.Random(0)
    for query in queries:
        draw.shuffle(order)
        for name in order:
            start = time.perf_counter()
            answers[name].append(variants[name](query))
            seconds[name].append(time.perf_counter() - start)
    return seconds, answers


def fill(store: Store, items: list[Item], vectors: np.ndarray) -> None:
    for start in range(0, len(items), ITEMS_PER_WRITE):
        store.put(items[start : start + ITEMS_PER_WRITE], vectors[start : start + ITEMS_PER_WRITE])


def ids_of(store: Store, query: np.ndarray, *, exact: bool) -> list[str]:
    return [hit.item.id for hit in store.search(query[None], K, exact=exact)[0]]


def recall(answers: list[list[str]], truth: list[list[str]]) -> float:
    return float(np.mean([len(set(answer) & set(exact)) / K for answer, exact in zip(answers, truth, strict=True)]))


def timed(function: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def text(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        numbers = [f"{row['p50_ms']:.1f}", f"{row['p95_ms']:.1f}", f"{row['recall_at_10']:.4f}"]
        made = [f"{row[name]:.1f}" if name in row else "" for name in ("write_seconds", "index_seconds")]
        cells.append([f"{row['items']} × {DIM}", row["variant"], *numbers, *made])
    header = ["vectors", "variant", "p50 ms", "p95 ms", "recall@10", "write, s", "index, s"]
    return table(header, cells)


if __name__ == "__main__":
    main()
