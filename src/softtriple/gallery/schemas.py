"""Answers of the JSON API; /openapi.json is generated from them.

Those that an answer holds many of are dataclasses, which are made in a third of the time of a pydantic model.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from softtriple.data.benchmark import Kind
from softtriple.gallery.changes import Action
from softtriple.gallery.layout import State

Method = Literal["pca", "umap"]
Column = Literal["prediction", "center", "suspect"]
AuditKind = Literal["labels", "leaks", "copies", "odd", "classes"]


class ErrorAnswer(BaseModel):
    """Why a request failed."""

    error: str


class Health(BaseModel):
    """The server and its store respond."""

    status: Literal["ok"]
    items: int
    version: str | None  # another one after every write to the store; null where the store does not count them


class About(BaseModel):
    """What the gallery shows, and the largest upload in bytes."""

    kind: Kind
    items: int
    classes: int
    dim: int
    trained_classes: int
    fingerprint: str
    version: str | None  # as in /health
    max_bytes: int
    edit: bool  # whether items can be tagged, relabelled and deleted
    compared: list[str]  # names of the two runs that /api/compare compares, if any
    audit: bool  # whether there is /api/audit


@dataclass(slots=True, kw_only=True)
class ItemAnswer:
    """A stored item; ``text`` is null unless the run is on texts.

    In listings of a class, ``taken_for`` is the class of the nearest other item if that class is different.
    """

    id: str
    class_name: str
    text: str | None
    has_picture: bool
    taken_for: str | None = None
    proposed: str | None = None  # another class, by someone who uses the gallery
    tags: tuple[str, ...] = ()


class ItemDetails(BaseModel):
    """Everything about one item; what its image file says is null if there is none or it cannot be read.

    ``center`` is the place of its centre on the page of its class, counted from 0, and ``centers`` their number.
    """

    item: ItemAnswer
    path: str | None
    content: str | None
    width: int | None = None
    height: int | None = None
    bytes: int | None = None
    center: int | None
    centers: int


@dataclass(slots=True, kw_only=True)
class HitAnswer:
    """A neighbour and its cosine similarity; ``same_class`` is null if the class of the query is unknown.

    ``probability`` is that of having the query's class if half of all queries are of classes that are not in the store;
    null if the run is not calibrated.
    """

    item: ItemAnswer
    score: float
    same_class: bool | None
    probability: float | None = None


@dataclass(slots=True, kw_only=True)
class ClassDecision:
    """The most likely class, what speaks for it, and by how much that is more than for the second class."""

    class_name: str
    score: float
    margin: float


@dataclass(slots=True, kw_only=True)
class SearchAnswer:
    """The neighbours of a query, best first; ``query`` is null unless the query is a stored item.

    ``known`` is false if the best match is below ``threshold``: the answer is none of these. Both are null if the run
    is not calibrated. ``vote`` is the decision of the neighbours, weighted by probability, or by score without one;
    ``by_centers`` is that of the nearest centre of the classes that were trained on.
    """

    query: ItemAnswer | None
    query_class: str | None
    hits: list[HitAnswer]
    known: bool | None = None
    threshold: float | None = None
    vote: ClassDecision | None = None
    by_centers: ClassDecision | None = None

    def to_json(self) -> bytes:
        """The answer as it is sent."""
        return _SEARCH_ANSWER.dump_json(self)


_SEARCH_ANSWER = TypeAdapter(SearchAnswer)


class ItemPage(BaseModel):
    """A page of items in a fixed random order; ``next_offset`` is null on the last page."""

    items: list[ItemAnswer]
    total: int
    next_offset: int | None


class Confusion(BaseModel):
    """Another class, and the number of items whose nearest neighbour belongs to it."""

    class_name: str
    items: int


class ClassSummary(BaseModel):
    """Retrieval quality of one class.

    ``recall`` and ``confused`` are of the ``measured`` items. ``recall`` is null if there are none, such as in a class
    that is not in the sample that a large store is measured on, or if the class has a single item.
    """

    class_name: str
    items: int
    measured: int
    recall: float | None
    confused: list[Confusion]
    trained: bool
    distinct_centers: int | None


class ClassNames(BaseModel):
    """The names of all classes, sorted."""

    class_names: list[str]


class ClassList(BaseModel):
    """All classes, lowest recall first. ``recall`` is Recall@1 over the items that are measured.

    The first request starts measuring: ask again until ``measured`` is ``items``. ``sampled`` is the number of items
    if the store has too many to measure all of them.
    """

    classes: list[ClassSummary]
    recall: float | None
    items: int
    measured: int
    sampled: int | None


class CenterAnswer(BaseModel):
    """A distinct centre: how many trained centres merged into it, and the items nearest to it."""

    merged: int
    count: int
    items: list[ItemAnswer]


class Mistake(BaseModel):
    """An item whose nearest other item is of another class, and the items of that class nearest to it."""

    item: ItemAnswer
    nearest: list[HitAnswer]


class ClassPage(BaseModel):
    """A class, its mistakes (most similar to the wrong class first) and, if the run was trained on it, its centres."""

    summary: ClassSummary
    mistakes: list[Mistake]
    centers_per_class: int | None
    centers: list[CenterAnswer]
    items: list[ItemAnswer]


class MapState(BaseModel):
    """Which map there is: ``version`` names the items and their order, ``umap`` says whether its layout is computed."""

    version: str
    umap: State


class MapAnswer(MapState):
    """Items in the plane, as columns; the place of an item in them is its row.

    ``explained`` is the share of the variance if the map shows principal components.
    """

    method: Method
    x: list[float]
    y: list[float]
    labels: list[int]
    class_names: list[str]
    explained: float | None
    total: int


class MapColumn(BaseModel):
    """A property of every item on the map, as positions in ``names``; -1 where there is none.

    ``pending`` items have none yet: ask again.
    """

    version: str
    values: list[int]
    names: list[str]
    pending: int


class MapItems(BaseModel):
    """The items in some rows of the map."""

    items: list[ItemAnswer]


class ComparedMetric(BaseModel):
    """A metric of both runs; the 95 % interval of the difference is null where there is none."""

    title: str
    first: float
    second: float
    low: float | None
    high: float | None


class ComparedQuery(BaseModel):
    """An item, and its neighbours by both runs."""

    item: ItemAnswer
    first: list[HitAnswer]
    second: list[HitAnswer]


class CompareAnswer(BaseModel):
    """Two runs on the items that both stores hold; until it is ``ready``, only the names and the number of items.

    ``only_first`` has queries that the first run gets right and the second wrong; ``counts`` are of queries that both,
    only the first, only the second and neither get right.
    """

    names: list[str]
    ready: bool
    items: int
    metrics: list[ComparedMetric] = []
    counts: list[int] = []
    only_first: list[ComparedQuery] = []
    only_second: list[ComparedQuery] = []


class AuditAnswer(BaseModel):
    """An audit in numbers; while it is computed, or if it failed, only ``message`` says more.

    ``leaked_items`` are test items with a copy in train. Recall is Recall@1 of the test items with and without them.
    """

    state: Literal["ready", "computing", "failed"]
    message: str = ""
    name: str = ""
    items: int = 0
    features: str = ""  # what items were compared by
    notes: list[str] = []
    counts: dict[AuditKind, int] = {}
    leaked_items: int = 0
    recall_with_leak: float | None = None
    recall_without_leak: float | None = None


class FoundItem(BaseModel):
    """An item of the audited data; ``split``, ``row`` and ``path`` name it for ``train --exclude``."""

    item: ItemAnswer
    stored: bool  # whether the store has it
    split: str
    row: int
    path: str | None
    leave_out: bool  # proposed


class ItemGroup(BaseModel):
    """Some items of a class."""

    class_name: str
    items: list[ItemAnswer]


class Finding(BaseModel):
    """One thing that an audit found.

    ``classes`` are the given and the suggested class of a suspect label, or the classes that are doubtful themselves,
    and ``beside`` shows items of them. ``probability`` is that of a wrong label. ``score`` is the similarity of copies,
    the cosine of an outlier to the nearest centre, or how much speaks against classes. ``note`` says how copies are
    alike, or what is odd.
    """

    kind: Literal["label", "copies", "odd", "few", "split", "merge", "confusable"]
    items: list[FoundItem] = []
    count: int = 1  # of copies, of which some may not be listed
    classes: list[str] = []
    beside: list[ItemGroup] = []
    probability: float | None = None
    score: float | None = None
    note: str = ""
    conflict: bool = False  # whether copies have different labels


class FindingPage(BaseModel):
    """Some findings of a kind, gravest first; ``next_offset`` is null on the last page."""

    findings: list[Finding]
    total: int
    next_offset: int | None


class Edit(BaseModel):
    """A change of some items; ``value`` is a tag or a class."""

    action: Action
    ids: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(min_length=1, max_length=20_000)
    value: str = Field(default="", max_length=1024)


class EditAnswer(BaseModel):
    """How many items were changed, and the change that /api/undo would take back, in words."""

    changed: int
    last: str | None
    relabelled: int
    deleted: int
    tagged: int
