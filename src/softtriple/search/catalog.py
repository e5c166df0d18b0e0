"""A run and its store: index data, search them, and measure what an approximate index misses.

Nothing here trains: items and classes that the encoder has never seen are embedded and added like any others.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image

from softtriple.config import Config
from softtriple.data import Benchmark, ImageArray, ImageFiles, ImageList, Items, Split, Texts
from softtriple.data.sampling import stream
from softtriple.models import Encoder
from softtriple.models.features import embed_feed
from softtriple.progress import Reporter, one_line
from softtriple.search import Hit, Item, Store, nearest, open_store
from softtriple.search.store import IndexKind
from softtriple.training.directory import RunDir
from softtriple.training.inference import still_feed
from softtriple.training.train import load_data

Part = Literal["all", "train", "test"]

# Items that are embedded and then written together: what a kill can lose.
ITEMS_AT_ONCE = 512
# Stored vectors by which `check_recall` measures, and how many neighbours of each.
CHECKED_QUERIES = 200
CHECKED_NEIGHBORS = 10


@dataclass(frozen=True)
class Indexed:
    """What indexing did: how many items were embedded, changed in class or source only, or were stored as they are."""

    added: int
    updated: int
    unchanged: int
    items: int  # in the store now
    classes: int


def fingerprint(run: Path) -> str:
    """What tells the encoder of a run from any other: a hash of its weights and its description."""
    folder = RunDir(run).encoder
    weights, description = folder / "model.safetensors", folder / "encoder.json"
    for file in (weights, description):
        if not file.is_file():
            raise FileNotFoundError(f"{folder}: no encoder here, {file.name} is missing")
    try:
        described = json.loads(description.read_text(encoding="utf-8"))
        # Not the version that wrote the file, and not the class names: they change no vector.
        told = json.dumps([described["config"], described["preprocess"]], sort_keys=True)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{description}: not the description of an encoder ({error})") from error
    with weights.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256")
    digest.update(told.encode())
    return digest.hexdigest()[:16]


def index_data(
    run: Path,
    data: Config,
    uri: str,
    reporter: Reporter,
    *,
    part: Part = "all",
    index: IndexKind = "auto",
    again: bool = False,
) -> Indexed:
    """Embed the items that ``data`` names and put them into the store at ``uri``, which is made if it is not there.

    Items that are stored already are not embedded again, so that a run that was stopped continues; ``again`` embeds
    them anew, for files whose content has changed.
    """
    encoder = Encoder.load(run).to("cuda" if torch.cuda.is_available() else "cpu")
    benchmark = load_data(data, reporter)
    still_feed(encoder, benchmark.train)  # refuses data that the encoder cannot take, before a store is made for them
    parts = _parts(benchmark, part)
    total = sum(len(ids) for _, ids in parts)
    done: Counter[str] = Counter()
    with _opened(run, uri, dim=encoder.dim, create=True) as store, reporter.task("indexing") as update:
        for split, ids in _chunks(parts):
            items = _items(split, ids, benchmark.class_names)
            known = {} if again else store.known(ids)
            new = [row for row, item in enumerate(items) if item.id not in known]
            moved = [item for item in items if item.id in known and known[item.id] != item]
            if moved:
                store.put(moved, np.stack([stored.vector for stored in store.get([item.id for item in moved])]))
            if new:
                vectors = _embed(encoder, split.take(np.array(new)))
                store.put([items[row] for row in new], vectors)
                done["zeros"] += int((~vectors.any(axis=1)).sum())
            done.update(added=len(new), updated=len(moved), unchanged=len(items) - len(new) - len(moved))
            update(done["added"] + done["updated"] + done["unchanged"], total)
        store.build_index(index)
        if done["zeros"]:
            reporter.note(f"{done['zeros']} items have a vector of zeros, and similarity 0 to everything")
        return Indexed(done["added"], done["updated"], done["unchanged"], store.count(), len(store.classes()))


def delete_data(run: Path, data: Config, uri: str, reporter: Reporter, *, part: Part = "all") -> int:
    """Remove the items that ``data`` names from the store; returns how many were there."""
    parts = _parts(load_data(data, reporter), part)
    with _opened(run, uri) as store:
        deleted = sum(store.delete(ids) for _, ids in parts)
        store.build_index()  # for what is left
        return deleted


def search(
    run: Path,
    queries: Sequence[str],
    uri: str,
    reporter: Reporter,
    *,
    k: int = 10,
    classes: Sequence[str] = (),
    exact: bool = False,
) -> list[list[Hit]]:
    """The stored items most similar to each query: an image file, a text, or ``row:N`` of the run's test items."""
    with _opened(run, uri) as store:
        held = store.classes() if classes else {}
        if unknown := [name for name in classes if name not in held]:
            raise ValueError(f"{uri}: there is no class {', '.join(map(repr, unknown))} in the store")
        encoder = Encoder.load(run)
        vectors = embed_queries(encoder, RunDir(run), queries, reporter)
        return store.search(vectors, k, classes=classes, exact=exact)


def embed_queries(
    encoder: Encoder, run: RunDir, queries: Sequence[str], reporter: Reporter
) -> Float32[np.ndarray, "queries dim"]:
    """The unit vector of each query, as `search` takes them."""
    rows = {query: int(query.removeprefix("row:")) for query in queries if re.fullmatch(r"row:\d+", query)}
    test = load_data(run.read_config(), reporter).test if rows else None
    found = []
    for query in queries:
        if query in rows:
            assert test is not None
            if rows[query] >= len(test):
                raise ValueError(f"{query}: the run has {len(test)} test items, row:0 to row:{len(test) - 1}")
            found.append(_embed(encoder, test.take(np.array([rows[query]]))))
        elif encoder.takes == "vector":
            raise ValueError(f"{query}: the encoder takes vectors, no images or texts; ask by row:N of its test items")
        else:
            found.append(encoder.embed([query]))
    return np.concatenate(found)


def table(query: str, hits: Sequence[Hit]) -> str:
    """What was found for ``query``, a line each: rank, score, class, and the path or text."""
    if not hits:
        return f"{one_line(query)}: nothing found"
    names = [one_line(hit.item.class_name) for hit in hits]
    width = max(len("class"), *map(len, names))
    lines = [one_line(query), f"rank   score  {'class':<{width}}  item"]
    for rank, (hit, name) in enumerate(zip(hits, names, strict=True), start=1):
        source = hit.item.source
        shown = hit.item.id if source.startswith("data:") or not source else source
        lines.append(f"{rank:>4}  {hit.score:>6.3f}  {name:<{width}}  {one_line(shown)}")
    return "\n".join(lines)


def answers(queries: Sequence[str], found: Sequence[Sequence[Hit]]) -> dict[str, Any]:
    """What was found for each query, as JSON takes it."""
    told = [[{**asdict(hit.item), "score": hit.score} for hit in hits] for hits in found]
    return {"queries": [{"query": query, "hits": hits} for query, hits in zip(queries, told, strict=True)]}


def check_recall(run: Path, uri: str, reporter: Reporter) -> float:
    """Share of the true 10 nearest neighbours that a search finds, over a sample of the stored vectors.

    The truth is `nearest` over everything stored. A query is not its own neighbour, and one as similar as the tenth
    counts as true, whichever of them `nearest` named.
    """
    with _opened(run, uri) as store:
        ids, queries = _sample(store, CHECKED_QUERIES)
        if len(ids) < 2:
            raise ValueError(f"{uri}: the store has {store.count()} items; recall needs at least two")
        depth = min(CHECKED_NEIGHBORS, store.count() - 1)
        truth = _tenth_scores(store, queries, depth, reporter)
        found = store.search(queries, depth + 1)
    right = 0
    for own, hits, tenth in zip(ids, found, truth, strict=True):
        others = [hit for hit in hits if hit.item.id != own][:depth]
        right += sum(hit.score >= tenth for hit in others)
    return right / (depth * len(ids))


def _tenth_scores(
    store: Store, queries: Float32[np.ndarray, "queries dim"], depth: int, reporter: Reporter
) -> list[float]:
    """How similar the ``depth``-th neighbour of each stored query is, the query itself left out."""
    asked, best = torch.from_numpy(queries), torch.empty(len(queries), 0)
    with reporter.task("exact neighbours") as update:
        seen, total = 0, store.count()
        for items, vectors in store.scan():
            scores = nearest(asked, torch.from_numpy(vectors), depth + 1).scores
            best = torch.cat([best, scores], dim=1).sort(dim=1, descending=True).values[:, : depth + 1]
            seen += len(items)
            update(seen, total)
    # The best is the query itself, or a copy that ties with it.
    return best[:, depth].tolist()


def _sample(store: Store, most: int) -> tuple[list[str], Float32[np.ndarray, "queries dim"]]:
    total = store.count()
    chosen = np.sort(stream("checked queries", 0).permutation(total)[:most])
    ids, found, start = [], [np.empty((0, store.dim), dtype=np.float32)], 0
    for items, vectors in store.scan():
        here = chosen[(chosen >= start) & (chosen < start + len(items))] - start
        ids += [items[row].id for row in here]
        found.append(vectors[here])
        start += len(items)
    return ids, np.concatenate(found)


@contextmanager
def _opened(run: Path, uri: str, *, dim: int | None = None, create: bool = False) -> Iterator[Store]:
    store = open_store(uri, fingerprint=fingerprint(run), dim=dim, create=create)
    try:
        yield store
    finally:
        store.close()


def _embed(encoder: Encoder, split: Split) -> Float32[np.ndarray, "items dim"]:
    device = next(encoder.parameters()).device
    return embed_feed(encoder, still_feed(encoder, split), device=device).numpy()


# From data to items.


def _parts(benchmark: Benchmark, part: Part) -> list[tuple[Split, list[str]]]:
    """The splits that ``part`` names, a gallery with the test items that search it, and the ids of their items."""
    splits = {"train": benchmark.train, "test": benchmark.test, "gallery": benchmark.gallery}
    copies: Counter[str] = Counter()  # over all splits, so that an id does not depend on which of them are indexed
    named = {name: (split, _ids(split.items, copies)) for name, split in splits.items() if split is not None}
    wanted = {"all": ("train", "test", "gallery"), "train": ("train",), "test": ("test", "gallery")}[part]
    return [named[name] for name in wanted if name in named]


def _chunks(parts: list[tuple[Split, list[str]]]) -> Iterator[tuple[Split, list[str]]]:
    for split, ids in parts:
        for start in range(0, len(ids), ITEMS_AT_ONCE):
            rows = np.arange(start, min(start + ITEMS_AT_ONCE, len(ids)))
            yield split.take(rows), ids[start : start + ITEMS_AT_ONCE]


def _ids(items: Items, copies: Counter[str]) -> list[str]:
    """The path of a file, the hash of any other content; a second copy of it ends in #2, and so on."""
    match items:
        case ImageFiles(paths):
            names = [_whole_path(path) for path in paths]
        case Texts(values):
            names = [_hash(value.encode()) for value in values]
        case ImageArray(array) | ImageList(array):
            names = [_hash(picture.tobytes()) for picture in array]
        case _:
            names = [_hash(vector.tobytes()) for vector in items.values]
    found = []
    for name in names:
        copies[name] += 1
        found.append(name if copies[name] == 1 else f"{name}#{copies[name]}")
    return found


def _items(split: Split, ids: Sequence[str], class_names: Sequence[str]) -> list[Item]:
    match split.items:
        case ImageFiles(paths):
            sources = [_whole_path(path) for path in paths]
        case Texts(values):
            sources = list(values)
        case ImageArray(array) | ImageList(array):
            sources = [_address(picture) for picture in array]
        case _:
            sources = [""] * len(split)
    labels = split.labels.tolist()
    return [
        Item(one, label, class_names[label], source) for one, label, source in zip(ids, labels, sources, strict=True)
    ]


def _whole_path(path: str) -> str:
    """The path from the root, which means the same in every folder that softtriple is started in."""
    whole = str(Path(path).absolute())  # resolve() raises on a loop of links
    try:
        whole.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path!r}: the name is not Unicode, so that no store can keep it; rename the file") from error
    return whole


def _address(picture: np.ndarray) -> str:
    """A small image in memory as a ``data:`` address: the store is then all that a gallery needs to show it."""
    file = BytesIO()
    Image.fromarray(picture).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _hash(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()[:32]}"
