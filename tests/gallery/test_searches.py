import numpy as np
from starlette.exceptions import HTTPException
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import make_calibration

from softtriple.gallery.searches import Found, Searches, SearchQuery
from softtriple.search import Item

CLASSES = ("a", "a", "b", "b", "c")


def make_store() -> MemoryStore:
    vectors = np.eye(5, 3, dtype=np.float32)
    vectors[3:] = np.array([[0.6, 0.8, 0.0], [0.0, 0.6, 0.8]])
    return MemoryStore([Item(str(row), ord(name), name, "") for row, name in enumerate(CLASSES)], vectors)


def test_queries_in_different_classes_are_answered_as_if_asked_alone() -> None:
    searches = Searches(make_store(), None, (), make_calibration())
    vector = np.array([[0.0, 1.0, 0.0]], dtype=np.float32)
    queries = [
        SearchQuery(2, vector, "a"),
        SearchQuery(3, vector, only=("b", "c")),
        SearchQuery(2, item_id="3"),
        SearchQuery(1, item_id="missing"),
        SearchQuery(4, item_id="2", only=("b", "c")),
        SearchQuery(2, vector, only=("nothing",)),
    ]
    together = searches.search(queries)
    found = [one for one in together if isinstance(one, Found)]
    ids = [[hit.item.id for hit in one.answer] for one in found]
    assert ids == [["1", "3"], ["3", "4", "2"], ["1", "0"], ["4", "3"], []]
    assert [one.class_name for one in found] == ["a", None, "b", "b", None]
    assert [one.answer.known for one in found] == [True, False, False, False, False]
    assert isinstance(together[3], HTTPException)
    for query, one in zip(queries, together, strict=True):
        (alone,) = searches.search([query])
        if isinstance(one, Found):
            assert isinstance(alone, Found)
            assert (alone.answer.hits, alone.answer.vote) == (one.answer.hits, one.answer.vote)


def test_no_queries_have_no_answers() -> None:
    assert Searches(make_store(), None, (), None).search([]) == []
