"""Answers of the JSON API; /openapi.json is generated from them."""

from typing import Literal

from pydantic import BaseModel

from softtriple.data.benchmark import Kind


class ErrorAnswer(BaseModel):
    """Why a request failed."""

    error: str


class Health(BaseModel):
    """The server and its store respond."""

    status: Literal["ok"]
    items: int


class About(BaseModel):
    """What the gallery shows, and the largest upload in bytes."""

    kind: Kind
    items: int
    classes: int
    dim: int
    trained_classes: int
    fingerprint: str
    max_bytes: int


class ItemAnswer(BaseModel):
    """A stored item; ``text`` is null unless the run is on texts.

    In listings of a class, ``taken_for`` is the class of the nearest other item if that class is different.
    """

    id: str
    class_name: str
    text: str | None
    has_picture: bool
    taken_for: str | None = None


class HitAnswer(BaseModel):
    """A neighbour and its cosine similarity; ``same_class`` is null if the class of the query is unknown."""

    item: ItemAnswer
    score: float
    same_class: bool | None


class SearchAnswer(BaseModel):
    """The neighbours of a query, best first; ``query`` is null unless the query is a stored item."""

    query: ItemAnswer | None
    query_class: str | None
    hits: list[HitAnswer]


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

    ``recall`` is null if the class has a single item or is not in the sample that a large store is measured on.
    """

    class_name: str
    items: int
    recall: float | None
    confused: list[Confusion]
    trained: bool
    distinct_centers: int | None


class ClassNames(BaseModel):
    """The names of all classes, sorted."""

    class_names: list[str]


class ClassList(BaseModel):
    """All classes, lowest recall first. ``recall`` is Recall@1 over all items.

    ``sampled`` is the number of items measured if the store has too many to measure all of them.
    """

    classes: list[ClassSummary]
    recall: float | None
    sampled: int | None


class CenterAnswer(BaseModel):
    """A distinct centre: how many trained centres merged into it, and the items nearest to it."""

    merged: int
    count: int
    items: list[ItemAnswer]


class ClassPage(BaseModel):
    """A class and, if the run was trained on it, its centres."""

    summary: ClassSummary
    centers_per_class: int | None
    centers: list[CenterAnswer]
    items: list[ItemAnswer]


class MapAnswer(BaseModel):
    """Items on the first two principal components, as columns; ``texts`` has the first characters of text items."""

    ids: list[str]
    texts: list[str] | None
    x: list[float]
    y: list[float]
    labels: list[int]
    class_names: list[str]
    explained: float
    total: int
