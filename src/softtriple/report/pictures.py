"""Items as pictures: queries with their nearest neighbours, and what the centres of a class hold."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from softtriple.data import ImageArray, ImageFiles, ImageList, Split, Texts, decode_image
from softtriple.data.images import center_crop, resize_short_side
from softtriple.data.sampling import Rows, stream
from softtriple.losses.centers import MERGED, count_distinct, nearest_centers
from softtriple.metrics import Embeddings
from softtriple.search import nearest
from softtriple.training import Run

Pixels = UInt8[np.ndarray, "height width 3"]
Picture = Pixels | str  # a short text if the items are texts or vectors

SIDE = 96
MOST_CHARACTERS = 160
NUM_CLASSES = 6
PICTURES_PER_CENTER = 8
SEARCHED, CANDIDATES = 5000, 32  # queries among which telling ones are sought, and their neighbours


@dataclass(frozen=True, eq=False)
class Neighbor:
    """A retrieved item and its similarity to the query."""

    picture: Picture
    class_name: str
    score: float
    same_class: bool


@dataclass(frozen=True, eq=False)
class Query:
    """A query and its nearest neighbours, most similar first, and why it is shown."""

    picture: Picture
    class_name: str
    neighbors: tuple[Neighbor, ...]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class CenterGroup:
    """The training items of a class that are nearest to one of its distinct centres."""

    count: int
    pictures: tuple[Picture, ...]  # of a few of them


@dataclass(frozen=True, eq=False)
class ClassCenters:
    """The distinct centres of a class; those that are nearest to no item have no group."""

    class_name: str
    distinct: int
    groups: tuple[CenterGroup, ...]


def picture(split: Split, row: int) -> Picture:
    """The item in ``row`` as a small RGB image, or as a short text if it is a text or a vector."""
    match split.items:
        case ImageFiles(paths):
            return np.asarray(center_crop(resize_short_side(decode_image(paths[row]), SIDE), SIDE))
        case ImageArray(pixels) | ImageList(pixels):
            return np.asarray(Image.fromarray(pixels[row]).convert("RGB"))
        case Texts(values):
            text = values[row]
            return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1].rstrip()}…"
        case _:
            return f"row {row}"


def example_rows(split: Split, number: int) -> Rows:
    """A few rows of ``split``, which depend on nothing but its size."""
    return np.sort(stream("queries to show", 0).permutation(len(split))[:number])


def telling_rows(embeddings: Embeddings, number: int) -> dict[str, Rows]:
    """``number`` rows of each kind that teaches something, of different classes where possible, by the reason.

    Large sets are sampled.
    """
    labels = embeddings.labels
    rows = torch.from_numpy(np.sort(stream("telling queries", 0).permutation(len(labels))[:SEARCHED]))
    found = nearest(embeddings.vectors[rows], embeddings.vectors, min(CANDIDATES, len(labels)))
    itself = found.rows == rows[:, None]
    itself[:, -1] |= ~itself.any(dim=1)  # pushed out by copies: leave out the last instead
    shape = (len(rows), found.rows.shape[1] - 1)
    scores, same = found.scores[~itself].view(shape), (labels[found.rows] == labels[rows, None])[~itself].view(shape)
    if not shape[1]:
        return {}
    best = scores[:, 0]
    other = torch.where(same, -2.0, scores).amax(dim=1)
    wrong, right = ~same[:, 0], same[:, 0] & (other > -2)
    kinds = {
        "Most confident errors": rows[wrong][best[wrong].argsort(descending=True, stable=True)],
        "Hardest correct": rows[right][(best - other)[right].argsort(stable=True)],
    }
    chosen = {reason: _of_different_classes(ordered, labels, number) for reason, ordered in kinds.items()}
    return {reason: some for reason, some in chosen.items() if len(some)}


def _of_different_classes(ordered: Tensor, labels: Tensor, number: int) -> Rows:
    """The first ``number`` rows, those of a class that came before moved to the end."""
    seen: set[int] = set()
    first: list[int] = []
    again: list[int] = []
    for row in ordered.tolist():
        (again if int(labels[row]) in seen else first).append(row)
        seen.add(int(labels[row]))
    return np.array([*first, *again][:number], dtype=np.int64)


def example_queries(
    embeddings: Embeddings, split: Split, *, rows: Rows, num_neighbors: int, reason: str = ""
) -> tuple[Query, ...]:
    """The items of ``split`` in ``rows`` with their nearest neighbours in it."""
    neighbors = nearest(embeddings.vectors[rows], embeddings.vectors, num_neighbors + 1)
    labels = embeddings.labels.tolist()

    def query(row: int, candidates: list[int], scores: list[float]) -> Query:
        others = [(other, score) for other, score in zip(candidates, scores, strict=True) if other != row]
        return Query(
            picture(split, row),
            embeddings.class_name(labels[row]),
            tuple(
                Neighbor(
                    picture(split, other), embeddings.class_name(labels[other]), score, labels[other] == labels[row]
                )
                for other, score in others[:num_neighbors]
            ),
            reason,
        )

    return tuple(map(query, rows.tolist(), neighbors.rows.tolist(), neighbors.scores.tolist()))


def center_examples(run: Run) -> tuple[ClassCenters, ...]:
    """The classes with the most distinct centres, and training items of each centre; none if a class has one centre."""
    centers = run.centers()
    if centers is None or centers.shape[1] == 1:
        return ()
    centers, split = centers.cpu(), run.training_split
    distinct = count_distinct(centers, MERGED)
    shown = distinct.argsort(descending=True, stable=True)[:NUM_CLASSES].tolist()
    items = split.take(np.flatnonzero(np.isin(split.labels, shown)))
    labels = torch.from_numpy(items.labels)
    owners = nearest_centers(run.embed_split(items).vectors, labels, centers)

    def groups(label: int) -> tuple[CenterGroup, ...]:
        numbers, sizes = torch.unique(owners[labels == label], return_counts=True)
        members = {number: (owners == number).nonzero()[:PICTURES_PER_CENTER, 0] for number in numbers.tolist()}
        made = [
            CenterGroup(size, tuple(picture(items, row) for row in rows.tolist()))
            for size, rows in zip(sizes.tolist(), members.values(), strict=True)
        ]
        return tuple(sorted(made, key=lambda group: -group.count))

    return tuple(ClassCenters(run.encoder.class_names[n], int(distinct[n]), groups(n)) for n in shown)
