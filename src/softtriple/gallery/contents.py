"""What there is to see: the answers to all that the page and its JSON interface ask. No HTTP here but refusals."""

import math
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.data.images import ImageError
from softtriple.gallery.answers import (
    About,
    CenterAnswer,
    ClassList,
    ClassPage,
    ClassSummary,
    Confusion,
    Found,
    HitAnswer,
    ItemAnswer,
    ItemPage,
    MapAnswer,
)
from softtriple.gallery.overview import (
    CenterGroup,
    ClassScore,
    Projection,
    Snapshot,
    center_groups,
    class_scores,
    mixed_order,
    nearest_labels,
    project,
    take_snapshot,
)
from softtriple.gallery.settings import Settings
from softtriple.gallery.thumbnails import Size, thumbnail_maker
from softtriple.gallery.uploads import embed_text, embed_upload, input_kind
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.models import Encoder
from softtriple.search import Hit, Item, Store

SHOWN = 24  # items of a centre, or of a class without centres
CONFUSIONS = 5
TEXT = 200  # characters of a text on the map


@dataclass(frozen=True, eq=False)
class Overview:
    """What takes a look at all vectors, each part computed when it is first asked for."""

    snapshot: Snapshot
    map_points: int

    @cached_property
    def order(self) -> list[int]:
        """The rows in the order in which the gallery shows them."""
        return mixed_order(self.snapshot)

    @cached_property
    def taken_for(self) -> Tensor:
        """The label of the nearest other item of each row."""
        return nearest_labels(self.snapshot)

    @cached_property
    def scores(self) -> dict[str, ClassScore]:
        """Classes by name, worst first."""
        return {score.name: score for score in class_scores(self.snapshot, self.taken_for)}

    @cached_property
    def projection(self) -> Projection:
        """The map."""
        return project(self.snapshot, self.map_points)


class Contents:
    """A run and its store, ready to be looked at.

    Methods that need the overview (items, classes, class_page, map) must be called from one thread; the others from
    any, but the encoder takes one query at a time.
    """

    def __init__(self, encoder: Encoder, store: Store, centers: Tensor | None, settings: Settings) -> None:
        self._encoder, self._store, self._centers, self._settings = encoder, store, centers, settings
        self._kind = input_kind(encoder)
        self._trained = {name: number for number, name in enumerate(encoder.class_names)}
        self._distinct = None if centers is None else count_distinct(centers, MERGED).tolist()
        self._thumbnail = thumbnail_maker()
        self._overview: Overview | None = None
        self._looked = 0.0  # when the classes were last counted

    # The store.

    def count(self) -> int:
        """How many items there are."""
        return self._store.count()

    def about(self) -> About:
        """What is shown here."""
        return About(
            kind=self._kind,
            items=self._store.count(),
            classes=len(self._store.classes()),
            dim=self._store.dim,
            trained_classes=len(self._trained),
            fingerprint=self._store.fingerprint,
            max_bytes=self._settings.max_bytes,
        )

    def class_names(self) -> list[str]:
        """The names of all classes; other than ``classes``, without a look at any vector."""
        return sorted(self._store.classes())

    def search_item(self, item_id: str, k: int) -> Found:
        """The neighbours of a stored item, without itself."""
        item = self._item(item_id)
        ((_, vector),) = self._store.get([item_id])
        hits = [hit for hit in self._store.search(vector[None], k + 1)[0] if hit.item.id != item.id]
        return self._found(hits[:k], item, item.class_name)

    def search_vector(self, vector: Float[np.ndarray, "1 dim"], k: int, class_name: str | None) -> Found:
        """The neighbours of a query from outside; its class is known if the person said it."""
        return self._found(self._store.search(vector, k)[0], None, class_name)

    def thumbnail(self, item_id: str, size: Size) -> bytes:
        """A small picture of a stored item."""
        item = self._item(item_id)
        if not self._answer(item).has_picture:
            raise HTTPException(404, "this item has no picture")
        try:
            return self._thumbnail(item.source, size)
        except ImageError as error:
            raise HTTPException(404, f"the picture of this item cannot be shown: {error.reason}") from None

    # The encoder.

    def embed_upload(self, data: bytes) -> Float[np.ndarray, "1 dim"]:
        """The vector of an uploaded picture."""
        return embed_upload(self._encoder, data, self._settings.max_pixels)

    def embed_text(self, text: str) -> Float[np.ndarray, "1 dim"]:
        """The vector of a text."""
        return embed_text(self._encoder, text)

    # The overview.

    def items(self, offset: int, limit: int, class_name: str | None = None, center: int | None = None) -> ItemPage:
        """Some of the items: of all, of a class, or of one of its centres."""
        overview = self._look()
        if class_name is None:
            if center is not None:
                raise HTTPException(422, "center: it goes with a class")
            rows, answers = overview.order, self._answers
        else:
            rows, answers = self._rows(class_name, center), self._members
        return ItemPage(
            items=answers(rows[offset : offset + limit]),
            total=len(rows),
            next_offset=offset + limit if offset + limit < len(rows) else None,
        )

    def classes(self) -> ClassList:
        """Every class, worst first."""
        overview = self._look()
        rated = [score for score in overview.scores.values() if score.recall is not None]
        hits = sum(score.recall * score.items for score in rated if score.recall is not None)
        return ClassList(
            classes=[self._summary(name) for name in overview.scores],
            recall=hits / sum(score.items for score in rated) if rated else None,
            sampled=len(overview.snapshot.items) if len(overview.snapshot.items) < overview.snapshot.total else None,
        )

    def class_page(self, class_name: str) -> ClassPage:
        """A class, and what falls to its centres."""
        self._look()
        rows, groups = self._rows(class_name), self._groups(class_name)
        return ClassPage(
            summary=self._summary(class_name),
            centers_per_class=sum(group.merged for group in groups) or None,
            centers=[
                CenterAnswer(merged=group.merged, count=len(group.rows), items=self._members(group.rows[:SHOWN]))
                for group in groups
            ],
            items=[] if groups else self._members(rows[:SHOWN]),
        )

    def map(self) -> MapAnswer:
        """Items in the plane."""
        overview = self._look()
        snapshot, (rows, points, explained) = overview.snapshot, overview.projection
        return MapAnswer(
            ids=[snapshot.items[row].id for row in rows],
            texts=[snapshot.items[row].source[:TEXT] for row in rows] if self._kind == "text" else None,
            x=_rounded(points[:, 0]),
            y=_rounded(points[:, 1]),
            labels=snapshot.labels[rows].tolist(),
            class_names=list(snapshot.class_names),
            explained=explained,
            total=snapshot.total,
        )

    def _look(self) -> Overview:
        """The overview, made anew when the store has changed: items are counted each time, classes now and then."""
        now = time.monotonic()
        if self._overview is not None and self._overview.snapshot.total == self._store.count():
            if now < self._looked + self._settings.recount_seconds:
                return self._overview
            if self._overview.snapshot.sizes == self._store.classes():
                self._looked = now
                return self._overview
        snapshot = take_snapshot(self._store, self._settings.analyzed_items)
        self._overview, self._looked = Overview(snapshot, self._settings.map_points), now
        return self._overview

    def _rows(self, class_name: str, center: int | None = None) -> list[int]:
        """The rows of a class, or of one of its centres; none where the sample has left it out."""
        assert self._overview is not None
        snapshot = self._overview.snapshot
        if class_name not in snapshot.sizes:
            raise HTTPException(404, f"there is no class {class_name!r} here")
        if center is None:
            return list(snapshot.rows_of(class_name).tolist())
        groups = self._groups(class_name)
        if center >= len(groups):
            raise HTTPException(404, f"the class {class_name!r} has {len(groups)} distinct centres, counted from 0")
        return groups[center].rows

    def _groups(self, class_name: str) -> list[CenterGroup]:
        """What falls to each distinct centre of a class; nothing where it has no centres."""
        assert self._overview is not None
        number = self._trained.get(class_name)
        if self._centers is None or number is None:
            return []
        snapshot = self._overview.snapshot
        rows = snapshot.rows_of(class_name)
        return center_groups(snapshot.vectors[rows], self._centers[number], rows.tolist())

    # Answers.

    def _item(self, item_id: str) -> Item:
        found = self._store.known([item_id])
        if item_id not in found:
            raise HTTPException(404, f"there is no item {item_id!r} here")
        return found[item_id]

    def _answer(self, item: Item) -> ItemAnswer:
        return ItemAnswer(
            id=item.id,
            class_name=item.class_name,
            text=item.source if self._kind == "text" else None,
            has_picture=self._kind == "image" and bool(item.source),
        )

    def _answers(self, rows: list[int]) -> list[ItemAnswer]:
        assert self._overview is not None
        return [self._answer(self._overview.snapshot.items[row]) for row in rows]

    def _members(self, rows: list[int]) -> list[ItemAnswer]:
        """Items of one class, and which of them are taken for another."""
        assert self._overview is not None
        snapshot, taken_for = self._overview.snapshot, self._overview.taken_for
        others = {row: int(taken_for[row]) for row in rows if taken_for[row] != snapshot.labels[row]}
        return [
            answer.model_copy(update={"taken_for": snapshot.class_names[others[row]]}) if row in others else answer
            for row, answer in zip(rows, self._answers(rows), strict=True)
        ]

    def _found(self, hits: list[Hit], query: Item | None, query_class: str | None) -> Found:
        return Found(
            query=None if query is None else self._answer(query),
            query_class=query_class,
            hits=[
                HitAnswer(
                    item=self._answer(item),
                    score=score,
                    same_class=None if query_class is None else item.class_name == query_class,
                )
                for item, score in hits
            ],
        )

    def _summary(self, class_name: str) -> ClassSummary:
        assert self._overview is not None
        number, score = self._trained.get(class_name), self._overview.scores.get(class_name)
        confused = () if score is None else score.confused[:CONFUSIONS]
        return ClassSummary(
            class_name=class_name,
            items=self._overview.snapshot.sizes[class_name] if score is None else score.items,
            recall=None if score is None else score.recall,
            confused=[Confusion(class_name=name, items=count) for name, count in confused],
            trained=number is not None,
            distinct_centers=None if self._distinct is None or number is None else self._distinct[number],
        )


def _rounded(values: Float[np.ndarray, " points"]) -> list[float]:
    """Numbers with four digits, which is finer than any screen and half the size to send."""
    largest = float(np.abs(values).max(initial=0.0))
    digits = 4 - math.floor(math.log10(largest)) if largest > 0 else 0
    return [round(value, digits) for value in values.tolist()]
