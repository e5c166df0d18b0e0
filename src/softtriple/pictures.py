"""Items as pictures: thumbnails, and a few queries with what is nearest to them."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from softtriple.data import ImageArray, ImageFiles, Split, Texts, decode_image
from softtriple.data.randomness import stream
from softtriple.evaluation import Embeddings
from softtriple.pixels import center_crop, resize_short_side
from softtriple.report_page import Found, Retrieved
from softtriple.search import nearest

Picture = UInt8[np.ndarray, "height width 3"] | str

THUMBNAIL = 96
MOST_CHARACTERS = 160


def picture(split: Split, row: int) -> Picture:
    """The item in ``row`` as a small RGB image; a short text where items are texts or vectors."""
    match split.items:
        case ImageFiles(paths):
            image = center_crop(resize_short_side(decode_image(paths[row]), THUMBNAIL), THUMBNAIL)
            return np.asarray(image)
        case ImageArray(pixels):
            return np.asarray(Image.fromarray(pixels[row]).convert("RGB"))
        case Texts(values):
            text = values[row]
            return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1].rstrip()}…"
        case _:
            return f"row {row}"


def retrieved(found: Embeddings, split: Split, *, num_queries: int, num_neighbors: int) -> tuple[Retrieved, ...]:
    """A few items of ``split``, drawn at random but the same for every method, with their nearest neighbours."""
    rows = np.sort(stream("queries to show", 0).permutation(len(split))[:num_queries])
    queries = found.vectors[rows]
    neighbors = nearest(queries, found.vectors, num_neighbors + 1)
    shown = []
    for query, candidates, scores in zip(
        rows.tolist(), neighbors.rows.tolist(), neighbors.scores.tolist(), strict=True
    ):
        others = [(row, score) for row, score in zip(candidates, scores, strict=True) if row != query][:num_neighbors]
        shown.append(
            Retrieved(
                picture=picture(split, query),
                class_name=_name(found, query),
                found=tuple(
                    Found(picture(split, row), _name(found, row), score, bool(found.labels[row] == found.labels[query]))
                    for row, score in others
                ),
            )
        )
    return tuple(shown)


def _name(found: Embeddings, row: int) -> str:
    return found.class_name(int(found.labels[row]))
