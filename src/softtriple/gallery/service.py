"""Answers to everything that the page and the JSON API ask about a run and its store."""

import math
import time
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.data.benchmark import Kind
from softtriple.data.images import ImageError
from softtriple.errors import UserError, counted
from softtriple.gallery.analysis import CenterGroup, ClassScore, Snapshot, center_groups, take_snapshot
from softtriple.gallery.images import Size, Thumbnails, decode_upload
from softtriple.gallery.schemas import (
    About,
    CenterAnswer,
    ClassList,
    ClassPage,
    ClassSummary,
    Confusion,
    HitAnswer,
    ItemAnswer,
    ItemPage,
    MapAnswer,
    SearchAnswer,
)
from softtriple.gallery.security import Settings
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.models import Encoder
from softtriple.search import Hit, Item, Store

SHOWN = 24  # items of a centre, or of a class without centres
CONFUSIONS = 5
MAP_CHARACTERS = 200  # of a text on the map


class GalleryService:
    """A run and its store.

    Methods that use the snapshot (``items``, ``classes``, ``class_page``, ``map``) must be called from one thread, and
    so must those that use the encoder (``embed_image``, ``embed_text``); the others from any thread.
    """

    def __init__(self, encoder: Encoder, store: Store, centers: Tensor | None, settings: Settings) -> None:
        self._encoder, self._store, self._settings = encoder, store, settings
        self._centers = None if centers is None else check_centers(centers, len(encoder.class_names), encoder.dim)
        self._trained = {name: number for number, name in enumerate(encoder.class_names)}
        self._distinct = None if centers is None else count_distinct(centers, MERGED).tolist()
        self._thumbnails = Thumbnails()
        self._snapshot: Snapshot | None = None
        self._counted = 0.0  # when the classes were last counted

    # From the store.

    def about(self) -> About:
        """What the gallery shows."""
        return About(
            kind=self._encoder.takes,
            items=self._store.count(),
            classes=len(self._store.classes()),
            dim=self._store.dim,
            trained_classes=len(self._trained),
            fingerprint=self._store.fingerprint,
            max_bytes=self._settings.max_bytes,
        )

    def search_item(self, item_id: str, k: int) -> SearchAnswer:
        """The neighbours of a stored item, without the item itself."""
        item = self._item(item_id)
        ((_, vector),) = self._store.get([item_id])
        hits = [hit for hit in self._store.search(vector[None], k + 1)[0] if hit.item.id != item.id]
        return self._search_answer(hits[:k], item, item.class_name)

    def search_vector(self, vector: Float[np.ndarray, "1 dim"], k: int, class_name: str | None) -> SearchAnswer:
        """The neighbours of a query that is not stored, and its class if the user knows it."""
        return self._search_answer(self._store.search(vector, k)[0], None, class_name)

    def thumbnail(self, item_id: str, size: Size) -> bytes:
        """A thumbnail of a stored item."""
        item = self._item(item_id)
        if not self._item_answer(item).has_picture:
            raise HTTPException(404, "this item has no image")
        try:
            return self._thumbnails.get(item.source, size)
        except ImageError as error:
            raise HTTPException(404, f"cannot show the image of this item: {error.reason}") from None

    # From the encoder.

    def embed_image(self, data: bytes) -> Float[np.ndarray, "1 dim"]:
        """The embedding of an uploaded image file."""
        self._require_kind("image")
        return self._encoder.embed([decode_upload(data, self._settings.max_pixels)])

    def embed_text(self, text: str) -> Float[np.ndarray, "1 dim"]:
        """The embedding of a text."""
        self._require_kind("text")
        return self._encoder.embed([text])

    # From the snapshot.

    def items(self, offset: int, limit: int, class_name: str | None = None, center: int | None = None) -> ItemPage:
        """A page of all items, or of those of a class or of one of its centres."""
        snapshot = self._current_snapshot()
        if class_name is None:
            if center is not None:
                raise HTTPException(422, "center: requires a class")
            rows = snapshot.order
            answers = [self._item_answer(snapshot.items[row]) for row in rows[offset : offset + limit]]
        else:
            rows = self._rows(snapshot, class_name, center)
            answers = self._members(snapshot, rows[offset : offset + limit])
        more = offset + limit < len(rows)
        return ItemPage(items=answers, total=len(rows), next_offset=offset + limit if more else None)

    def classes(self) -> ClassList:
        """Every class, lowest recall first."""
        snapshot = self._current_snapshot()
        rated = [(score.recall, score.items) for score in snapshot.scores.values() if score.recall is not None]
        sampled = len(snapshot.items)
        return ClassList(
            classes=[self._summary(snapshot, name) for name in snapshot.scores],
            recall=sum(recall * items for recall, items in rated) / sum(items for _, items in rated) if rated else None,
            sampled=sampled if sampled < snapshot.total else None,
        )

    def class_page(self, class_name: str) -> ClassPage:
        """A class, with the items nearest to each of its centres."""
        snapshot = self._current_snapshot()
        rows, groups = self._rows(snapshot, class_name), self._groups(snapshot, class_name)
        return ClassPage(
            summary=self._summary(snapshot, class_name),
            centers_per_class=sum(group.merged for group in groups) or None,
            centers=[
                CenterAnswer(merged=merged, count=len(members), items=self._members(snapshot, members[:SHOWN]))
                for merged, members in groups
            ],
            items=[] if groups else self._members(snapshot, rows[:SHOWN]),
        )

    def map(self) -> MapAnswer:
        """Items on the first two principal components."""
        snapshot = self._current_snapshot()
        rows, points, explained = snapshot.projection
        items = [snapshot.items[row] for row in rows]
        return MapAnswer(
            ids=[item.id for item in items],
            texts=[item.source[:MAP_CHARACTERS] for item in items] if self._encoder.takes == "text" else None,
            x=_rounded(points[:, 0]),
            y=_rounded(points[:, 1]),
            labels=snapshot.labels[rows].tolist(),
            class_names=list(snapshot.class_names),
            explained=explained,
            total=snapshot.total,
        )

    def _current_snapshot(self) -> Snapshot:
        """The snapshot, taken again if the number of items or, checked now and then, of a class has changed."""
        now = time.monotonic()
        snapshot = self._snapshot
        if snapshot is not None and snapshot.total == self._store.count():
            if now < self._counted + self._settings.recount_seconds:
                return snapshot
            if snapshot.sizes == self._store.classes():
                self._counted = now
                return snapshot
        snapshot = take_snapshot(self._store, self._settings.analyzed_items)
        self._snapshot, self._counted = replace(snapshot, map_points=self._settings.map_points), now
        return self._snapshot

    def _rows(self, snapshot: Snapshot, class_name: str, center: int | None = None) -> list[int]:
        """The rows of a class, or of one of its centres; none if the class is not in the sample."""
        if class_name not in snapshot.sizes:
            raise HTTPException(404, f"no class {class_name!r} in the store")
        if center is None:
            return list(snapshot.rows_of(class_name).tolist())
        groups = self._groups(snapshot, class_name)
        if center >= len(groups):
            distinct = counted(len(groups), "distinct centre")
            raise HTTPException(404, f"center = {center}: class {class_name!r} has {distinct}")
        return groups[center].rows

    def _groups(self, snapshot: Snapshot, class_name: str) -> list[CenterGroup]:
        """The distinct centres of a class with the rows nearest to each; none if the class has no centres."""
        number = self._trained.get(class_name)
        if self._centers is None or number is None:
            return []
        rows = snapshot.rows_of(class_name)
        return center_groups(snapshot.vectors[rows], self._centers[number], rows.tolist())

    def _members(self, snapshot: Snapshot, rows: list[int]) -> list[ItemAnswer]:
        """Items of one class, with what they are taken for."""
        answers = [self._item_answer(snapshot.items[row]) for row in rows]
        for row, answer in zip(rows, answers, strict=True):
            label = snapshot.taken_for[row]
            if label != snapshot.labels[row]:
                answer.taken_for = snapshot.class_names[label]
        return answers

    def _summary(self, snapshot: Snapshot, class_name: str) -> ClassSummary:
        number = self._trained.get(class_name)
        not_sampled = ClassScore(class_name, snapshot.sizes[class_name], recall=None, confused=())
        score = snapshot.scores.get(class_name, not_sampled)
        return ClassSummary(
            class_name=class_name,
            items=score.items,
            recall=score.recall,
            confused=[Confusion(class_name=name, items=count) for name, count in score.confused[:CONFUSIONS]],
            trained=number is not None,
            distinct_centers=None if self._distinct is None or number is None else self._distinct[number],
        )

    # Items.

    def _require_kind(self, kind: Kind) -> None:
        if self._encoder.takes != kind:
            raise HTTPException(404, f"the encoder of this run takes {self._encoder.takes}s, not {kind}s")

    def _item(self, item_id: str) -> Item:
        known = self._store.known([item_id])
        if item_id not in known:
            raise HTTPException(404, f"no item {item_id!r} in the store")
        return known[item_id]

    def _item_answer(self, item: Item) -> ItemAnswer:
        return ItemAnswer(
            id=item.id,
            class_name=item.class_name,
            text=item.source if self._encoder.takes == "text" else None,
            has_picture=self._encoder.takes == "image" and bool(item.source),
        )

    def _search_answer(self, hits: list[Hit], query: Item | None, query_class: str | None) -> SearchAnswer:
        return SearchAnswer(
            query=None if query is None else self._item_answer(query),
            query_class=query_class,
            hits=[
                HitAnswer(
                    item=self._item_answer(item),
                    score=max(-1.0, min(score, 1.0)),  # the cosine of rounded unit vectors can exceed 1 by 1e-7
                    same_class=None if query_class is None else item.class_name == query_class,
                )
                for item, score in hits
            ],
        )


def check_centers(centers: Tensor, num_classes: int, dim: int) -> Float[Tensor, "classes k dim"]:
    """``centers`` if they are finite and fit the encoder, so that a damaged run fails at the start."""
    if centers.ndim != 3 or (centers.shape[0], centers.shape[2]) != (num_classes, dim):
        raise UserError(
            f"the centres of this run have shape {tuple(centers.shape)}, but its encoder has {num_classes} classes and "
            f"{dim} dimensions: expected ({num_classes}, k, {dim}). centers.safetensors belongs to another run"
        )
    if not centers.isfinite().all():
        raise UserError("the centres of this run contain NaN or infinite numbers; centers.safetensors is damaged")
    return centers


def _rounded(values: Float[np.ndarray, " points"]) -> list[float]:
    """``values`` to four digits of the largest: finer than any screen, and half the size to send."""
    largest = float(np.abs(values).max(initial=0.0))
    digits = 4 - math.floor(math.log10(largest)) if largest > 0 else 0
    return [round(value, digits) for value in values.tolist()]
