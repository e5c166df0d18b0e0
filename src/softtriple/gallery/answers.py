"""What the JSON interface answers: one model for each answer, from which /openapi.json is made."""

from typing import Literal

from pydantic import BaseModel

from softtriple.gallery.uploads import Kind


class Problem(BaseModel):
    """Why a request was refused, in a sentence."""

    error: str


class Health(BaseModel):
    """The server answers, and so does its store."""

    status: Literal["ok"]
    items: int


class About(BaseModel):
    """What is shown here."""

    kind: Kind
    items: int
    classes: int
    dim: int
    trained_classes: int
    fingerprint: str
    max_bytes: int


class ItemAnswer(BaseModel):
    """One stored item; ``text`` is that of a text item.

    Items listed by class also say what they are ``taken_for``: the class of their nearest item, where it is another.
    """

    id: str
    class_name: str
    text: str | None
    has_picture: bool
    taken_for: str | None = None


class HitAnswer(BaseModel):
    """A neighbour; ``same_class`` is null where the class of the query is not known."""

    item: ItemAnswer
    score: float
    same_class: bool | None


class Found(BaseModel):
    """The neighbours of a query, best first."""

    query: ItemAnswer | None
    query_class: str | None
    hits: list[HitAnswer]


class ItemPage(BaseModel):
    """Some of the items, in a mixed but lasting order; ``next_offset`` is null on the last page."""

    items: list[ItemAnswer]
    total: int
    next_offset: int | None


class Confusion(BaseModel):
    """Another class, and how many items of this one have their nearest neighbour in it."""

    class_name: str
    items: int


class ClassSummary(BaseModel):
    """How well the items of a class find each other.

    ``recall`` is null where a class has one item only, or is not among those that a large store is measured by.
    """

    class_name: str
    items: int
    recall: float | None
    confused: list[Confusion]
    trained: bool
    distinct_centers: int | None


class ClassNames(BaseModel):
    """The names of all classes, in order."""

    class_names: list[str]


class ClassList(BaseModel):
    """All classes, worst first. ``recall`` is Recall@1 over all items.

    ``sampled`` says of how many items, where the store has more than are measured: those of some classes, if possible.
    """

    classes: list[ClassSummary]
    recall: float | None
    sampled: int | None


class CenterAnswer(BaseModel):
    """A distinct centre of a class, how many trained centres merged into it, and the items that fall to it."""

    merged: int
    count: int
    items: list[ItemAnswer]


class ClassPage(BaseModel):
    """A class with its centres, where it was trained on."""

    summary: ClassSummary
    centers_per_class: int | None
    centers: list[CenterAnswer]
    items: list[ItemAnswer]


class MapAnswer(BaseModel):
    """Items in the plane of the two principal directions, in columns; ``texts`` are how text items begin."""

    ids: list[str]
    texts: list[str] | None
    x: list[float]
    y: list[float]
    labels: list[int]
    class_names: list[str]
    explained: float
    total: int
