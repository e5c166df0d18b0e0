"""Searching a store for many queries at once, and what its calibration says about the neighbours."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.metrics import Calibration
from softtriple.metrics.calibration import GallerySize
from softtriple.search import Item, Store
from softtriple.training.answers import Answer, center_decisions, make_answer
from softtriple.training.calibrating import gallery_size


class SearchQuery(NamedTuple):
    """Something to search for: the vector of a query that is not stored, with its class if known, or a stored item.

    It is searched for among all classes, or ``only`` some.
    """

    k: int
    vector: Float[np.ndarray, "1 dim"] | None = None
    class_name: str | None = None
    item_id: str | None = None
    only: tuple[str, ...] = ()


class Found(NamedTuple):
    """The answer to a query, the item that the query is, if it is stored, and the class of the query, if known."""

    answer: Answer
    item: Item | None
    class_name: str | None


class _Asked(NamedTuple):
    """A query and its place among all."""

    place: int
    k: int
    vector: Float[np.ndarray, " dim"]
    item: Item | None
    class_name: str | None


class Searches:
    """Searches in a store with the unit centres and the calibration of a run, if it has them; for any thread."""

    def __init__(
        self, store: Store, centers: Tensor | None, class_names: Sequence[str], calibration: Calibration | None
    ) -> None:
        self._store, self._centers, self._class_names, self._calibration = store, centers, class_names, calibration
        self._held: tuple[int, dict[str, int]] = 0, {}  # items in the store, and of each class

    def search(self, queries: Sequence[SearchQuery]) -> list[Found | Exception]:
        """The neighbours of each query, found together; a stored item is not its own neighbour."""
        known = self._store.known([query.item_id for query in queries if query.item_id is not None])
        stored = {one.item.id: one for one in self._store.get(list(known))}
        answers: list[Found | Exception] = []
        together: dict[tuple[str, ...], list[_Asked]] = defaultdict(list)
        for place, query in enumerate(queries):
            answers.append(HTTPException(404, f"no item {query.item_id!r} in the store"))
            if query.vector is not None:
                together[query.only].append(_Asked(place, query.k, query.vector[0], None, query.class_name))
            elif query.item_id in stored:
                item, vector = stored[query.item_id]
                together[query.only].append(_Asked(place, query.k, vector, item, item.class_name))
        for only, asked in together.items():
            size = self._gallery_size(only)
            vectors = np.stack([one.vector for one in asked])
            found = self._store.search(vectors, max(one.k for one in asked) + 1, classes=only)
            centers = center_decisions(vectors, self._centers, self._class_names)
            for one, hits, center in zip(asked, found, centers, strict=True):
                others = [hit for hit in hits if one.item is None or hit.item.id != one.item.id]
                answers[one.place] = Found(make_answer(others[: one.k], size, center), one.item, one.class_name)
        return answers

    def _gallery_size(self, only: Sequence[str]) -> GallerySize | None:
        """The calibration for the store as it is; its classes are counted again when the number of items changes."""
        if self._calibration is None:
            return None
        count, held = self._store.count(), self._held
        if held[0] != count:
            held = self._held = count, self._store.classes()
        return gallery_size(self._calibration, held[1], only)
