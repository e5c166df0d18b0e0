"""Index data into a store, search it, and measure what an approximate index misses.

Nothing here trains: items and classes that the encoder has never seen are embedded and added like any others.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image

from softtriple.data import Benchmark, ImageArray, ImageFiles, ImageList, Split, Texts
from softtriple.data.benchmark import absolute_path, item_ids
from softtriple.data.sampling import stream
from softtriple.errors import UserError, counted, did_you_mean
from softtriple.models import Encoder
from softtriple.models.allocation import reusing_memory
from softtriple.models.features import Feeds, check_items, embed_feed
from softtriple.progress import Reporter
from softtriple.search.knn import nearest
from softtriple.search.resident import resident, serving
from softtriple.search.store import Hit, IndexKind, Item, Store

Part = Literal["all", "train", "test"]

# Items that are embedded and then written together: the most that a kill can lose.
ITEMS_AT_ONCE = 512
# So many queries are answered sooner by reading the whole store into memory than by scanning it for each of them.
MANY_QUERIES = 32
# Stored vectors by which `check_recall` measures, and the number of neighbours of each.
CHECKED_QUERIES = 200
CHECKED_NEIGHBORS = 10


@dataclass(frozen=True)
class Indexed:
    """What indexing did with the items, and what the store holds now."""

    added: int  # embedded
    updated: int  # stored already, with another class or source
    unchanged: int
    items: int  # in the store now
    classes: int
    moved: int = 0  # image files known by their content, under a path that no longer exists
    added_classes: int = 0  # classes that were given centres


class Entries(NamedTuple):
    """Items to index: a split, the id of each of its items, and the class names that its labels index."""

    split: Split
    ids: list[str]
    class_names: Sequence[str]


def benchmark_entries(benchmark: Benchmark, part: Part = "all") -> list[Entries]:
    """The entries of the splits that ``part`` names; "test" includes the gallery that test items search."""
    splits = {"train": benchmark.train, "test": benchmark.test, "gallery": benchmark.gallery}
    copies: Counter[str] = Counter()  # over all splits, so that an id does not depend on ``part``
    named = {
        name: Entries(split, item_ids(split.items, copies), benchmark.class_names)
        for name, split in splits.items()
        if split is not None
    }
    wanted = {"all": ("train", "test", "gallery"), "train": ("train",), "test": ("test", "gallery")}[part]
    return [named[name] for name in wanted if name in named]


def index_items(
    encoder: Encoder,
    entries: Sequence[Entries],
    store: Store,
    reporter: Reporter,
    *,
    index: IndexKind = "auto",
    again: bool = False,
    half: torch.dtype | None = None,
) -> Indexed:
    """Embed items and put them into ``store``, then build its index; with ``half`` the backbone computes in that type.

    Items that are already stored are not embedded again, so an interrupted run continues; ``again`` embeds them anew,
    for files whose content has changed. An image file that was stored under a path that no longer exists, and is
    recognised by its content, moves to its new path.
    """
    for part in entries:
        check_items(encoder, part.split)
    total = sum(len(part.ids) for part in entries)
    may_have_moved = store.count() > 0 and not again
    done: Counter[str] = Counter()
    with reporter.task("indexing") as update, reusing_memory():
        for split, ids, class_names in _chunks(entries):
            items = _items(split, ids, class_names)
            known = {} if again else store.known(ids)
            new = [row for row, item in enumerate(items) if item.id not in known]
            current = [replace(item, content=known[item.id].content) for item in items if item.id in known]
            changed = [item for item in current if item != known[item.id]]
            if changed:
                store.put(changed, np.stack([stored.vector for stored in store.get([item.id for item in changed])]))
            fresh = _with_contents(split, new, items)
            moved = _move(store, fresh) if may_have_moved else set()
            embedded = [row for row, item in zip(new, fresh, strict=True) if item.id not in moved]
            if embedded:
                vectors = _embed(encoder, split.take(np.array(embedded)), half)
                store.put([item for item in fresh if item.id not in moved], vectors)
                done["zeros"] += int((~vectors.any(axis=1)).sum())
            done.update(added=len(embedded), moved=len(moved), updated=len(changed))
            done["unchanged"] += len(items) - len(new) - len(changed)
            update(done["added"] + done["moved"] + done["updated"] + done["unchanged"], total)
    store.build_index(index)
    reporter.note(serving(store).reason)
    if done["zeros"]:
        reporter.note(f"{counted(done['zeros'], 'item')} with a zero vector and similarity 0 to everything")
    return Indexed(
        added=done["added"],
        updated=done["updated"],
        unchanged=done["unchanged"],
        items=store.count(),
        classes=len(store.classes()),
        moved=done["moved"],
    )


def stored_vectors(
    entries: Sequence[Entries], store: Store, *, without: Sequence[str]
) -> tuple[list[str], Float32[np.ndarray, "items dim"]]:
    """Class names and stored vectors of the items of ``entries`` that are in none of the classes ``without``."""
    left_out = set(without)
    names: list[str] = []
    vectors: list[np.ndarray] = []
    for split, ids, class_names in _chunks(entries):
        named = [(class_names[label], id) for label, id in zip(split.labels, ids, strict=True)]
        wanted = [(name, id) for name, id in named if name not in left_out]
        if wanted:
            names += [name for name, _ in wanted]
            vectors += [stored.vector for stored in store.get([id for _, id in wanted])]
    return names, np.stack(vectors) if vectors else np.empty((0, 0), dtype=np.float32)


def delete_items(entries: Sequence[Entries], store: Store) -> int:
    """Remove items from ``store`` and index what is left; returns how many were stored."""
    deleted = sum(store.delete(part.ids) for part in entries)
    store.build_index()
    return deleted


def search_store(
    store: Store, vectors: Float32[np.ndarray, "queries dim"], *, k: int, classes: Sequence[str], exact: bool
) -> list[list[Hit]]:
    """The stored items most similar to each vector; exact in a store that fits into memory, and with ``exact``."""
    held = store.classes() if classes else {}
    if unknown := [name for name in classes if name not in held]:
        raise UserError(
            f"there is no class {', '.join(map(repr, unknown))} in the store; {did_you_mean(unknown[0], held)}"
        )
    in_memory = serving(store).in_memory
    if in_memory and len(vectors) >= MANY_QUERIES:
        store = resident(store)
    return store.search(vectors, k, classes=classes, exact=exact or in_memory)


def is_row(query: str) -> bool:
    """Whether ``query`` names an item by its row, as in ``row:17``."""
    return re.fullmatch(r"row:\d+", query) is not None


def embed_queries(
    encoder: Encoder, queries: Sequence[str], rows: Split | None = None
) -> Float32[np.ndarray, "queries dim"]:
    """The unit vector of each query: an image file, a text, or ``row:N`` of the items in ``rows``."""
    vectors = []
    for query in queries:
        if is_row(query) and rows is not None:
            row = int(query.removeprefix("row:"))
            if row >= len(rows):
                raise UserError(f"{query}: the run has {counted(len(rows), 'test item')}, row:0 to row:{len(rows) - 1}")
            vectors.append(_embed(encoder, rows.take(np.array([row]))))
        elif encoder.takes == "vector":
            raise UserError(f"{query}: the encoder takes vectors, not images or texts; use row:N of the test items")
        else:
            vectors.append(encoder.embed([query]))
    return np.concatenate(vectors)


def check_recall(store: Store, reporter: Reporter) -> float:
    """Share of the true 10 nearest neighbours that a search finds, over a sample of the stored vectors.

    The truth is `nearest` over everything stored. A query is not its own neighbour, and any item as similar as the
    tenth counts as true.
    """
    ids, queries = _sample(store, CHECKED_QUERIES)
    if len(ids) < 2:
        raise UserError(f"the store has {counted(store.count(), 'item')}; measuring recall needs at least two")
    depth = min(CHECKED_NEIGHBORS, store.count() - 1)
    truth = _tenth_scores(store, queries, depth, reporter)
    right = 0
    for own, hits, tenth in zip(ids, store.search(queries, depth + 1), truth, strict=True):
        others = [hit for hit in hits if hit.item.id != own][:depth]
        right += sum(hit.score >= tenth for hit in others)
    return right / (depth * len(ids))


def _tenth_scores(
    store: Store, queries: Float32[np.ndarray, "queries dim"], depth: int, reporter: Reporter
) -> list[float]:
    """Similarity of the ``depth``-th neighbour of each stored query, not counting the query itself."""
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
    ids, parts, start = [], [np.empty((0, store.dim), dtype=np.float32)], 0
    for items, vectors in store.scan():
        here = chosen[(chosen >= start) & (chosen < start + len(items))] - start
        ids += [items[row].id for row in here]
        parts.append(vectors[here])
        start += len(items)
    return ids, np.concatenate(parts)


def _embed(encoder: Encoder, split: Split, half: torch.dtype | None = None) -> Float32[np.ndarray, "items dim"]:
    feed = Feeds(encoder, reporter=Reporter(quiet=True)).evaluation(split)
    return embed_feed(encoder, feed, half=half).numpy()


# From data to items.


def _chunks(entries: Sequence[Entries]) -> Iterator[Entries]:
    for split, ids, class_names in entries:
        for start in range(0, len(ids), ITEMS_AT_ONCE):
            rows = np.arange(start, min(start + ITEMS_AT_ONCE, len(ids)))
            yield Entries(split.take(rows), ids[start : start + ITEMS_AT_ONCE], class_names)


def _with_contents(split: Split, rows: Sequence[int], items: Sequence[Item]) -> list[Item]:
    """The items of ``rows``, with the hash of their content if they are files."""
    if not isinstance(split.items, ImageFiles):
        return [items[row] for row in rows]
    return [replace(items[row], content=_file_hash(split.items.paths[row])) for row in rows]


def _move(store: Store, items: Sequence[Item]) -> set[str]:
    """Give ``items`` whose content is stored under a path that no longer exists their new ids, which are returned."""
    stored = store.with_content([item.content for item in items if item.content])
    gone: dict[str, list[str]] = {}
    for old in stored:
        if not Path(old.source).exists():
            gone.setdefault(old.content, []).append(old.id)
    pairs = [(item, gone[item.content].pop()) for item in items if gone.get(item.content)]
    if pairs:
        vectors = np.stack([one.vector for one in store.get([old for _, old in pairs])])
        store.put([item for item, _ in pairs], vectors)
        store.delete([old for _, old in pairs])
    return {item.id for item, _ in pairs}


def _items(split: Split, ids: Sequence[str], class_names: Sequence[str]) -> list[Item]:
    match split.items:
        case ImageFiles(paths):
            sources = [absolute_path(path) for path in paths]
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


def _address(picture: np.ndarray) -> str:
    """A small image in memory as a ``data:`` URI, so that a gallery needs nothing but the store to show it."""
    file = BytesIO()
    Image.fromarray(picture).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _file_hash(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
