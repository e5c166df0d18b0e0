"""What there is to see: the answers to all that the page and its JSON interface ask. No HTTP here but refusals."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

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
    ClassScore,
    Projection,
    Snapshot,
    center_groups,
    class_scores,
    mixed_order,
    project,
    take_snapshot,
)
from softtriple.gallery.settings import Settings
from softtriple.gallery.thumbnails import Size, thumbnail_maker
from softtriple.gallery.uploads import embed_text, embed_upload, input_kind
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.models import Encoder
from softtriple.pixels import ImageError
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
    def scores(self) -> list[ClassScore]:
        """Classes, worst first."""
        return class_scores(self.snapshot)

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

    def items(self, offset: int, limit: int, class_name: str | None) -> ItemPage:
        """Some of the items, of one class or of all."""
        overview = self._look()
        snapshot = overview.snapshot
        rows = overview.order if class_name is None else snapshot.rows_of(self._known(class_name)).tolist()
        return ItemPage(
            items=self._answers(rows[offset : offset + limit]),
            total=len(rows),
            next_offset=offset + limit if offset + limit < len(rows) else None,
        )

    def classes(self) -> ClassList:
        """Every class, worst first."""
        overview = self._look()
        rated = [score for score in overview.scores if score.recall is not None]
        hits = sum(score.recall * score.items for score in rated if score.recall is not None)
        return ClassList(
            classes=[self._summary(score) for score in overview.scores],
            recall=hits / sum(score.items for score in rated) if rated else None,
            sampled=len(overview.snapshot.items) if len(overview.snapshot.items) < overview.snapshot.total else None,
        )

    def class_page(self, class_name: str) -> ClassPage:
        """A class, and what falls to its centres."""
        overview = self._look()
        self._known(class_name)
        snapshot, number = overview.snapshot, self._trained.get(class_name)
        (score,) = [score for score in overview.scores if score.name == class_name]
        rows = snapshot.rows_of(class_name)
        centers = None if self._centers is None or number is None else self._centers[number]
        groups = [] if centers is None else center_groups(snapshot.vectors[rows], centers, rows.tolist())
        return ClassPage(
            summary=self._summary(score),
            centers_per_class=None if centers is None else len(centers),
            centers=[
                CenterAnswer(merged=group.merged, count=len(group.rows), items=self._answers(group.rows[:SHOWN]))
                for group in groups
            ],
            items=[] if groups else self._answers(rows[:SHOWN].tolist()),
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
        """The overview, made anew when the store has more or fewer items than it had."""
        if self._overview is None or self._overview.snapshot.total != self._store.count():
            snapshot = take_snapshot(self._store, self._settings.analyzed_items)
            self._overview = Overview(snapshot, self._settings.map_points)
        return self._overview

    def _known(self, class_name: str) -> str:
        assert self._overview is not None
        if class_name not in self._overview.snapshot.class_names:
            raise HTTPException(404, f"there is no class {class_name!r} here")
        return class_name

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

    def _summary(self, score: ClassScore) -> ClassSummary:
        number = self._trained.get(score.name)
        return ClassSummary(
            class_name=score.name,
            items=score.items,
            recall=score.recall,
            confused=[Confusion(class_name=name, items=count) for name, count in score.confused[:CONFUSIONS]],
            trained=number is not None,
            distinct_centers=None if self._distinct is None or number is None else self._distinct[number],
        )


def _rounded(values: Float[np.ndarray, " points"]) -> list[float]:
    """Numbers with four digits, which is finer than any screen and half the size to send."""
    largest = float(np.abs(values).max(initial=0.0))
    digits = 4 - math.floor(math.log10(largest)) if largest > 0 else 0
    return [round(value, digits) for value in values.tolist()]
