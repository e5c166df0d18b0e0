"""Latency and recall@10 of searching one query at a time: a store in memory and on disk, and other libraries.

Queries are unseen vectors of the stored classes. The variants take turns, in an order shuffled for each query, so that
other load on the machine affects all of them alike; each size and number of threads has its own process. hnswlib and
USearch take part if they are installed. Writes results/search.json, results/search.md and results/search.svg, the
growth of time and memory with the number of vectors of 64 dimensions.

    python benchmarks/search.py [--sizes 1000x64,10000x64,100000x64,1000000x64,100000x512,1000000x512] [--threads 1,2]
        [--queries 200] [--milvus]
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measuring import RESULTS, machine, peak_memory, reset_peak_memory, run_alone, save, table

SIZES = "1000x64,10000x64,100000x64,1000000x64,100000x512,1000000x512"
ITEMS_PER_CLASS = 100
NOISE = 1.2  # around class centres, as in evaluate.py
K = 10
ITEMS_PER_WRITE = 20_000
GRAPH_NUMBERS = 10_000_000  # building a graph over more numbers takes minutes
LINKS, BREADTH = 32, 64  # of the graphs: neighbours of a vector, and candidates of a search

# Maps a query to the rows of its neighbours, best first.
Variant = Callable[[Any], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--threads", default=",".join(map(str, sorted({1, os.cpu_count() or 1}))))
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--milvus", action="store_true", help="also Milvus Lite, up to 10000 vectors")
    parser.add_argument("--run", metavar="SIZE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(compare(*map(int, options.run.split("x")), options.queries, options.milvus)))
        return
    where, rows = machine("lancedb", "faiss-cpu", "scikit-learn", "torch", "numpy"), []
    for size in options.sizes.split(","):
        for threads in map(int, options.threads.split(",")):
            more = ["--queries", str(options.queries), *(["--milvus"] if options.milvus else [])]
            part = run_alone(__file__, "--run", size, *more, threads=threads)
            rows += [{"size": size, "threads": threads, **row} for row in part]
            print(text(rows[-len(part) :]), flush=True)
            save("search", where, rows, text(rows))  # after each, since some take an hour
    draw_growth([row for row in rows if row["size"].endswith("x64") and row["threads"] == 1])


def compare(count: int, dim: int, num_queries: int, milvus: bool) -> list[dict[str, Any]]:
    """Every variant on the same items and queries."""
    import numpy as np
    import torch
    from evaluate import sample

    from softtriple.search import Item, nearest, open_store, resident

    os.environ["SOFTTRIPLE_SEARCH_GB"] = "100"
    vectors, labels = sample(count + num_queries, dim, max(1, count // ITEMS_PER_CLASS), NOISE)
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(1))
    gallery, queries = vectors[order[num_queries:]].numpy(), vectors[order[:num_queries]].numpy()
    del vectors
    # Ids in the order of rows, so that equal scores come in the same order everywhere.
    items = [
        Item(f"/photos/{row:07}.jpg", label, str(label), f"/photos/{row:07}.jpg")
        for row, label in enumerate(labels[order[num_queries:]].tolist())
    ]
    variants, made = others(gallery)
    with tempfile.TemporaryDirectory() as folder:
        places = {"LanceDB": str(Path(folder) / "lance")}
        if milvus and count <= 10_000:
            places["Milvus Lite"] = str(Path(folder) / "milvus.db")
        for name, place in places.items():
            store = open_store(place, fingerprint="benchmark", dim=dim, create=True)
            start = time.perf_counter()
            for first in range(0, count, ITEMS_PER_WRITE):
                store.put(items[first : first + ITEMS_PER_WRITE], gallery[first : first + ITEMS_PER_WRITE])
            store.build_index("approximate")
            made[f"{name}, index"] = {"seconds": time.perf_counter() - start}
            variants[f"{name}, index"] = partial(rows_of, store, exact=False)
            variants[f"{name}, exact"] = partial(rows_of, store, exact=True)
            if name == "LanceDB":
                before, start = reset_peak_memory(), time.perf_counter()
                in_memory = resident(store)
                made["memory"] = {
                    "seconds": time.perf_counter() - start,
                    "megabytes": (peak_memory() - before) / 1e6,
                }
                variants["memory"] = partial(rows_of, in_memory, exact=False)
        seconds, answers = ask(variants, queries)
    truth = nearest(queries, gallery, K).rows.tolist()
    flat = np.percentile(seconds["faiss flat"], 95)
    return [
        {
            "variant": name,
            "p50_ms": float(np.percentile(seconds[name], 50)) * 1e3,
            "p95_ms": float(np.percentile(seconds[name], 95)) * 1e3,
            "p95_over_flat": float(np.percentile(seconds[name], 95) / flat),
            "recall_at_10": float(np.mean([len({*a} & {*b}) / K for a, b in zip(answers[name], truth, strict=True)])),
            **made.get(name, {}),
        }
        for name in variants
    ]


def others(gallery: Any) -> tuple[dict[str, Variant], dict[str, dict[str, float]]]:
    """Searches by other libraries, and the seconds that it took to prepare them."""
    import faiss
    from sklearn.neighbors import NearestNeighbors

    count, dim = gallery.shape
    made: dict[str, dict[str, float]] = {}
    flat = faiss.IndexFlatIP(dim)
    flat.add(gallery)
    variants: dict[str, Variant] = {"faiss flat": lambda query: flat.search(query[None], K)[1][0].tolist()}
    if gallery.size <= GRAPH_NUMBERS:
        brute = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(gallery)
        variants["scikit-learn"] = lambda query: brute.kneighbors(query[None], return_distance=False)[0].tolist()
        start = time.perf_counter()
        graph = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efSearch = BREADTH
        graph.add(gallery)
        made["faiss HNSW"] = {"seconds": time.perf_counter() - start}
        variants["faiss HNSW"] = lambda query: graph.search(query[None], K)[1][0].tolist()
    if gallery.size <= GRAPH_NUMBERS and find_spec("hnswlib"):
        import hnswlib

        start = time.perf_counter()
        small_world = hnswlib.Index(space="ip", dim=dim)
        small_world.init_index(max_elements=count, M=LINKS)
        small_world.set_ef(BREADTH)
        small_world.add_items(gallery)
        made["hnswlib"] = {"seconds": time.perf_counter() - start}
        variants["hnswlib"] = lambda query: small_world.knn_query(query[None], k=K)[0][0].tolist()
    if gallery.size <= GRAPH_NUMBERS and find_spec("usearch"):
        from usearch.index import Index

        start = time.perf_counter()
        index = Index(ndim=dim, metric="ip", connectivity=LINKS, expansion_search=BREADTH)
        index.add(None, gallery)
        made["USearch"] = {"seconds": time.perf_counter() - start}
        variants["USearch"] = lambda query: index.search(query, K).keys.tolist()
    return variants, made


def rows_of(store: Any, query: Any, *, exact: bool) -> list[int]:
    return [int(hit.item.id[8:15]) for hit in store.search(query[None], K, exact=exact)[0]]


def ask(variants: dict[str, Variant], queries: Any) -> tuple[dict[str, list[float]], dict[str, list[list[int]]]]:
    """The seconds and the answers of each variant for each query."""
    for variant in variants.values():
        for query in queries[:5]:
            variant(query)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    answers: dict[str, list[list[int]]] = {name: [] for name in variants}
    order, draw = list(variants), random.Random(0)
    for query in queries:
        draw.shuffle(order)
        for name in order:
            start = time.perf_counter()
            answers[name].append(variants[name](query))
            seconds[name].append(time.perf_counter() - start)
    return seconds, answers


def draw_growth(rows: list[dict[str, Any]]) -> None:
    """Median time and memory against the number of vectors."""
    if len({row["size"] for row in rows}) < 2:
        return
    import matplotlib
    from matplotlib.figure import Figure

    from softtriple.report.charts import STYLE, line_style

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        time_axes, memory_axes = figure.subplots(1, 2)
        for place, name in enumerate(dict.fromkeys(row["variant"] for row in rows)):
            points = [(int(row["size"].split("x")[0]), row) for row in rows if row["variant"] == name]
            counts, (color, dashes) = [n for n, _ in points], line_style(place)
            style: Any = {"color": color, "linestyle": (0, dashes) if dashes else "-", "marker": "os^DvP*X"[place % 8]}
            time_axes.plot(counts, [row["p50_ms"] for _, row in points], label=name, **style)
            if name == "memory":
                memory_axes.plot(counts, [row["megabytes"] for _, row in points], **style)
        time_axes.set(xscale="log", yscale="log", xlabel="vectors of 64 dimensions", ylabel="ms per query, median")
        memory_axes.set(xscale="log", yscale="log", xlabel="vectors of 64 dimensions", ylabel="peak MB to read a store")
        for axes in (time_axes, memory_axes):
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_major_formatter("{x:g}")
        figure.legend(*time_axes.get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False)
        figure.savefig(RESULTS / "search.svg")


def text(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        numbers = [f"{row['p50_ms']:.2f}", f"{row['p95_ms']:.2f}", f"{row['p95_over_flat']:.2f}"]
        made = [f"{row[name]:.1f}" if name in row else "" for name in ("seconds", "megabytes")]
        cells.append([row["size"], str(row["threads"]), row["variant"], *numbers, f"{row['recall_at_10']:.4f}", *made])
    header = ["vectors", "threads", "variant", "p50 ms", "p95 ms", "p95 ÷ flat", "recall@10", "prepare, s", "MB"]
    return table(header, cells)


if __name__ == "__main__":
    main()
