"""Answers to everything that the page and the JSON API ask about a run and its store."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.data.benchmark import Kind
from softtriple.data.images import ImageError
from softtriple.errors import UserError, counted
from softtriple.gallery.analysis import (
    CenterGroup,
    ClassScore,
    Snapshot,
    center_groups,
    check_centers,
    mean_recall,
    take_snapshot,
)
from softtriple.gallery.audits import AuditFile, Audits, findings_page, suggested_labels
from softtriple.gallery.changes import Changes
from softtriple.gallery.compare import Comparing, Other, answer_of
from softtriple.gallery.details import image_file, mistakes
from softtriple.gallery.images import Size, Thumbnails, decode_upload
from softtriple.gallery.layout import UmapLayout
from softtriple.gallery.maps import center_column, map_answer
from softtriple.gallery.measuring import Measuring
from softtriple.gallery.schemas import (
    About,
    AuditKind,
    CenterAnswer,
    ClassDecision,
    ClassList,
    ClassPage,
    ClassSummary,
    Column,
    CompareAnswer,
    Confusion,
    FindingPage,
    Health,
    HitAnswer,
    ItemAnswer,
    ItemDetails,
    ItemPage,
    MapColumn,
    MapItems,
    MapState,
    Method,
    Mistake,
    SearchAnswer,
)
from softtriple.gallery.searches import Searches, SearchQuery
from softtriple.gallery.security import Settings
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.metrics import Calibration
from softtriple.models import Encoder
from softtriple.search import Item, Store
from softtriple.training.answers import Answer, unit_centers

SHOWN = 24  # items of a centre, or of a class without centres
CONFUSIONS = 5


class GalleryService:
    """A run and its store.

    Methods that use the snapshot (``items``, ``item``, ``classes``, ``class_page``, ``map…``) must be called from one
    thread, and so must those that use the encoder (``embed_image``, ``embed_text``); the others from any thread.
    """

    def __init__(
        self,
        encoder: Encoder,
        store: Store,
        centers: Tensor | None,
        settings: Settings,
        calibration: Calibration | None = None,
        layout_file: Path | None = None,
        changes: Changes | None = None,
        other: Other | None = None,
        audits: Audits | None = None,
    ) -> None:
        self._encoder, self._store, self._settings = encoder, store, settings
        if centers is not None:
            check_centers(centers, len(encoder.class_names), encoder.dim)
        self._centers = unit_centers(centers)
        self._searches = Searches(store, self._centers, encoder.class_names, calibration)
        self._trained = {name: number for number, name in enumerate(encoder.class_names)}
        self._distinct = None if centers is None else count_distinct(centers, MERGED).tolist()
        self._thumbnails = Thumbnails()
        self._snapshot: Snapshot | None = None
        self._counted = 0.0  # when the classes were last counted
        self._layout, self._measuring, self._changes = UmapLayout(layout_file), Measuring(), changes
        self._other, self._audits = other, audits
        self._comparing = None if other is None else Comparing(other.store)

    def close(self) -> None:
        """Stop computing the layout of the map, the neighbours of all items and the audit."""
        self._layout.close()
        self._measuring.close()
        if self._audits is not None:
            self._audits.close()

    # From the store.

    def health(self) -> Health:
        """How many items there are, and whether they may have changed."""
        return Health(status="ok", items=self._store.count(), version=self._store.version())

    def about(self) -> About:
        """What the gallery shows."""
        return About(
            kind=self._encoder.takes,
            items=self._store.count(),
            classes=len(self._store.classes()),
            dim=self._store.dim,
            trained_classes=len(self._trained),
            fingerprint=self._store.fingerprint,
            version=self._store.version(),
            max_bytes=self._settings.max_bytes,
            edit=self._changes is not None,
            compared=[] if self._other is None else list(self._other.names),
            audit=self._audits is not None,
        )

    def search(self, queries: Sequence[SearchQuery]) -> list[SearchAnswer | Exception]:
        """The neighbours of each query, found together; a stored item is not its own neighbour."""
        return [
            one if isinstance(one, Exception) else self._search_answer(*one) for one in self._searches.search(queries)
        ]

    def search_json(self, queries: Sequence[SearchQuery]) -> list[bytes | Exception]:
        """`search`, as JSON."""
        return [one if isinstance(one, Exception) else one.to_json() for one in self.search(queries)]

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

    def classes(self) -> bytes:
        """A `ClassList` as JSON: every class, lowest recall first."""
        snapshot = self._current_snapshot()
        self._measuring.start(snapshot)
        if "classes" not in snapshot.answers:
            measured, items, scores = snapshot.measured, len(snapshot.items), snapshot.scores()
            answer = ClassList(
                classes=[self._summary(score) for score in scores],
                recall=mean_recall(scores),
                items=items,
                measured=measured,
                sampled=items if items < snapshot.total else None,
            ).model_dump_json()
            if measured < items:
                return answer.encode()
            snapshot.answers["classes"] = answer.encode()
        return snapshot.answers["classes"]

    def class_page(self, class_name: str) -> ClassPage:
        """A class, with the items nearest to each of its centres."""
        snapshot = self._current_snapshot()
        rows, groups = self._rows(snapshot, class_name), self._groups(snapshot, class_name)
        mistaken = mistakes(snapshot, rows)  # measures the class
        return ClassPage(
            summary=self._summary(snapshot.score(class_name)),
            mistakes=[
                Mistake(
                    item=self._members(snapshot, [row])[0],
                    nearest=[self._hit_answer(snapshot.items[other], score, None) for other, score in nearest],
                )
                for row, nearest in mistaken
            ],
            centers_per_class=sum(group.merged for group in groups) or None,
            centers=[
                CenterAnswer(merged=merged, count=len(members), items=self._members(snapshot, members[:SHOWN]))
                for merged, members in groups
            ],
            items=[] if groups else self._members(snapshot, rows[:SHOWN]),
        )

    def item(self, item_id: str) -> ItemDetails:
        """An item, its file and its centre."""
        item, snapshot = self._item(item_id), self._current_snapshot()
        answer = self._item_answer(item)
        row = snapshot.row_of(item_id)
        groups = self._groups(snapshot, item.class_name)
        inline = item.source.startswith("data:")
        file = image_file(item.source) if answer.has_picture and not inline else None
        return ItemDetails(
            item=answer if row is None else self._members(snapshot, [row])[0],
            path=item.source if answer.has_picture and not inline else None,
            content=item.content or None,
            center=next((place for place, group in enumerate(groups) if row in group.rows), None),
            centers=len(groups),
            **(file._asdict() if file else {}),
        )

    def map_state(self) -> MapState:
        """Which items the map has, and whether their layout is computed."""
        digest = self._current_snapshot().digest
        return MapState(version=digest, umap=self._layout.state(digest))

    def map(self, method: Method | None = None) -> bytes:
        """A `MapAnswer` as JSON, by UMAP if it is ready, unless ``method`` is given."""
        snapshot, state = self._current_snapshot(), self.map_state()
        if method == "umap" and state.umap != "ready":
            raise HTTPException(404, f"the UMAP layout is {state.umap}")
        method = method or ("umap" if state.umap == "ready" else "pca")
        key = f"{method} {state.umap}"
        if key not in snapshot.answers:
            snapshot.answers[key] = map_answer(snapshot, method, state, self._layout).model_dump_json().encode()
        return snapshot.answers[key]

    def map_column(self, version: str, column: Column) -> bytes:
        """A `MapColumn` as JSON: what items are taken for, their centre as on the page of their class, or a label."""
        snapshot = self._map_snapshot(version)
        if column in snapshot.answers:
            return snapshot.answers[column]
        pending = 0
        if column == "prediction":
            self._measuring.start(snapshot)
            values, names = snapshot.taken_for.clone(), list(snapshot.class_names)
            pending = int((values[snapshot.map_rows] < 0).sum())
        elif column == "suspect":
            values, names = suggested_labels(self._audit(), snapshot)
        else:
            values, names = center_column(snapshot, lambda name: self._groups(snapshot, name))
        shown = values[snapshot.map_rows].tolist()
        answer = MapColumn(version=version, values=shown, names=names, pending=pending).model_dump_json().encode()
        if not pending:
            snapshot.answers[column] = answer
        return answer

    def map_items(self, version: str, rows: list[int]) -> MapItems:
        """The items in ``rows`` of the map."""
        snapshot = self._map_snapshot(version)
        shown = snapshot.map_rows
        if any(row >= len(shown) for row in rows):
            raise HTTPException(404, f"the map has {counted(len(shown), 'item')}")
        return MapItems(items=[self._item_answer(snapshot.items[shown[row]]) for row in rows])

    def compare(self) -> CompareAnswer:
        """The run beside another one."""
        assert self._other is not None
        assert self._comparing is not None
        snapshot = self._current_snapshot()
        try:
            compared = self._comparing.result(snapshot)
        except UserError as error:
            raise HTTPException(404, str(error)) from None
        if compared is None:
            return CompareAnswer(names=list(self._other.names), ready=False, items=len(snapshot.items))
        return answer_of(compared, snapshot, self._other.names, self._hit_answer)

    def audit_findings(self, kind: AuditKind, offset: int, limit: int) -> FindingPage:
        """Some of what the audit found."""
        snapshot, found = self._current_snapshot(), self._audit()
        return findings_page(found, kind, offset, limit, snapshot, self._store, self._item_answer)

    def _audit(self) -> AuditFile:
        if self._audits is None:
            raise HTTPException(404, "this gallery has no audit")
        return self._audits.content()

    def _map_snapshot(self, version: str) -> Snapshot:
        snapshot = self._current_snapshot()
        if version != snapshot.digest:
            raise HTTPException(409, "the store has changed since this map was drawn; load the map again")
        return snapshot

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
        snapshot = replace(snapshot, map_points=self._settings.map_points)
        self._snapshot, self._counted = snapshot, now
        self._layout.request(snapshot.digest, snapshot.vectors[snapshot.map_rows].numpy())
        return snapshot

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
        for row, answer, label in zip(rows, answers, snapshot.taken(rows), strict=True):
            if label != snapshot.labels[row]:
                answer.taken_for = snapshot.class_names[label]
        return answers

    def _summary(self, score: ClassScore) -> ClassSummary:
        number = self._trained.get(score.name)
        return ClassSummary(
            class_name=score.name,
            items=score.items,
            measured=score.measured,
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
            proposed=None if self._changes is None else self._changes.labels.get(item.id),
            tags=() if self._changes is None else tuple(self._changes.tags.get(item.id, ())),
        )

    def _search_answer(self, answer: Answer, query: Item | None, query_class: str | None) -> SearchAnswer:
        probabilities = answer.probabilities or [None] * len(answer)
        return SearchAnswer(
            query=None if query is None else self._item_answer(query),
            query_class=query_class,
            hits=[
                self._hit_answer(item, score, query_class, probability)
                for (item, score), probability in zip(answer, probabilities, strict=True)
            ],
            known=answer.known,
            threshold=answer.threshold,
            vote=None if answer.vote is None else ClassDecision(**answer.vote._asdict()),
            by_centers=None if answer.by_centers is None else ClassDecision(**answer.by_centers._asdict()),
        )

    def _hit_answer(
        self, item: Item, score: float, query_class: str | None, probability: float | None = None
    ) -> HitAnswer:
        return HitAnswer(
            item=self._item_answer(item),
            score=max(-1.0, min(score, 1.0)),  # the cosine of rounded unit vectors can exceed 1 by 1e-7
            same_class=None if query_class is None else item.class_name == query_class,
            probability=probability,
        )
