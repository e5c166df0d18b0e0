import threading
import time

import pytest

from softtriple.data.prefetch import map_ahead


def data_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("softtriple-data")]


def test_results_are_in_order():
    def slow_first(value: int) -> int:
        time.sleep(0.02 if value == 0 else 0)
        return value * value

    assert list(map_ahead(slow_first, range(9), 3)) == [value * value for value in range(9)]


def test_it_does_not_run_far_ahead():
    asked: list[int] = []

    def inputs():
        for value in range(100):
            asked.append(value)
            yield value

    results = map_ahead(lambda value: value, inputs(), 2)
    assert next(results) == 0
    assert len(asked) == 5
    results.close()
    assert not data_threads()


def test_an_error_comes_out_and_the_threads_end():
    def fail(value: int) -> int:
        if value == 3:
            raise RuntimeError("three")
        return value

    with pytest.raises(RuntimeError, match="three"):
        list(map_ahead(fail, range(100), 2))
    assert not data_threads()


def test_without_a_number_there_is_a_worker_per_cpu(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    started: set[str] = set()
    barrier = threading.Barrier(3)  # passed only by three threads at once

    def meet(value: int) -> int:
        barrier.wait(timeout=60)
        started.add(threading.current_thread().name)
        return value

    assert list(map_ahead(meet, range(3))) == [0, 1, 2]
    assert len(started) == 3


def test_zero_workers_work_in_the_calling_thread():
    assert list(map_ahead(lambda _: threading.current_thread(), range(2), 0)) == [threading.current_thread()] * 2
