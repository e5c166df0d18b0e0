"""All items are measured in the background, and stopping is quick."""

import threading

from tests.gallery.browsing import wait_until
from tests.gallery.small_gallery import Collection
from tests.gallery.test_analysis import random_snapshot, random_store

from softtriple.gallery import Settings
from softtriple.gallery.measuring import Measuring
from softtriple.gallery.schemas import ClassList, MapColumn
from softtriple.gallery.service import GalleryService


def test_a_small_store_is_measured_at_once() -> None:
    snapshot, measured = random_snapshot(), Measuring()
    measured.start(snapshot)
    assert snapshot.measured == 90
    measured.close()


def test_what_is_measured_so_far_is_answered(collection: Collection, slow_measuring: threading.Event) -> None:
    service = GalleryService(collection.encoder, random_store(90, 5), None, Settings())
    wait_until(lambda: ClassList.model_validate_json(service.classes()).measured == 10)
    answer = ClassList.model_validate_json(service.classes())
    assert (answer.items, answer.measured) == (90, 10)
    assert sum(one.measured for one in answer.classes) == 10
    version = service.map_state().version
    column = MapColumn.model_validate_json(service.map_column(version, "prediction"))
    assert column.pending == column.values.count(-1) == 80
    assert service.class_page("class 0").summary.measured == service.class_page("class 0").summary.items
    slow_measuring.set()
    service._measuring._thread.join()  # type: ignore[union-attr]
    answer = ClassList.model_validate_json(service.classes())
    assert answer.measured == 90
    assert MapColumn.model_validate_json(service.map_column(version, "prediction")).pending == 0
    service.close()


def test_a_new_snapshot_replaces_the_old_one(slow_measuring: threading.Event) -> None:
    first, second, measured = random_snapshot(), random_snapshot(), Measuring()
    measured.start(first)
    slow_measuring.set()
    measured.start(second)
    measured._thread.join()  # type: ignore[union-attr]
    assert second.measured == 90
    measured.close()
