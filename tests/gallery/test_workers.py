"""Thread pools of the server: results, errors, and what happens when there is no thread to be had."""

import asyncio
import threading

import pytest
import torch
from starlette.exceptions import HTTPException

from softtriple.gallery.workers import Batches, Workers, one_core


def test_work_returns_or_raises_in_the_event_loop() -> None:
    def fail() -> None:
        raise LookupError("nothing here")

    async def main() -> None:
        workers = Workers("test", threads=1, queue=0, seconds=30.0)
        assert await workers.run(lambda: threading.current_thread().name) == "gallery-test_0"
        with pytest.raises(LookupError, match="nothing here"):
            await workers.run(fail)
        assert await workers.run(lambda: 2) == 2, "failed work leaves the queue"
        workers.close()

    asyncio.run(main())


def test_without_threads_the_answer_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        workers = Workers("test", threads=1, queue=0, seconds=30.0)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(HTTPException) as error:
                await workers.run(lambda: 1)
        assert (error.value.status_code, "Retry-After" in error.value.headers) == (503, True)
        assert await workers.run(lambda: 1) == 1, "later there are threads again"
        workers.close()

    asyncio.run(main())


def test_questions_that_wait_are_answered_together() -> None:
    batches: list[list[int]] = []
    first, go_on = threading.Event(), threading.Event()

    def double(numbers) -> list[int | Exception]:
        batches.append(list(numbers))
        first.set()
        assert go_on.wait(60)
        return [LookupError("three") if number == 3 else 2 * number for number in numbers]

    async def main() -> None:
        workers = Workers("test", threads=1, queue=0, seconds=60.0)
        asking = Batches(workers, double)
        tasks = [asyncio.create_task(asking.ask(1))]
        while not first.is_set():
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(asking.ask(number)) for number in (2, 3, 4, 5)]
        await asyncio.sleep(0)
        tasks[4].cancel()  # a client that goes away
        await asyncio.sleep(0)
        go_on.set()
        one, two, three, four, _ = await asyncio.gather(*tasks, return_exceptions=True)
        assert (one, two, four) == (2, 4, 8)
        assert isinstance(three, LookupError)
        assert await asking.ask(7) == 14
        workers.close()

    asyncio.run(main())
    assert batches == [[1], [2, 3, 4, 5], [7]]


@pytest.mark.parametrize("at_once", [1, 2])
def test_questions_that_keep_coming_are_answered_together(at_once: int) -> None:
    batches: list[list[int]] = []

    def same(numbers) -> list[int | Exception]:
        batches.append(list(numbers))
        return list(numbers)

    async def main() -> None:
        workers = Workers("test", threads=2, queue=0, seconds=60.0)
        asking = Batches(workers, same, at_once=at_once)
        for _ in range(2):
            tasks = []
            for number in range(20):
                tasks.append(asyncio.create_task(asking.ask(number)))
                await asyncio.sleep(0)
            assert await asyncio.gather(*tasks) == list(range(20))
        workers.close()

    asyncio.run(main())
    assert batches == [list(range(20))] * 2


def test_a_failure_is_that_of_every_question_of_its_batch() -> None:
    def fail(numbers) -> list[int | Exception]:
        raise LookupError("nothing here")

    async def main() -> None:
        workers = Workers("test", threads=1, queue=0, seconds=30.0)
        asking = Batches(workers, fail)
        for _ in range(2):
            failures = await asyncio.gather(*(asking.ask(number) for number in range(3)), return_exceptions=True)
            assert [type(failure) for failure in failures] == [LookupError] * 3
        workers.close()

    asyncio.run(main())


@pytest.mark.parametrize(("all_cores", "cores"), [(False, 1), (True, 2)])
def test_threads_compute_on_one_core_unless_told_otherwise(all_cores: bool, cores: int) -> None:
    async def ask() -> int:
        workers = Workers("test", threads=1, queue=0, seconds=30.0, all_cores=all_cores)
        try:
            return await workers.run(torch.get_num_threads)
        finally:
            workers.close()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert asyncio.run(ask()) == cores
        assert torch.get_num_threads() == 2  # of this thread
        with one_core():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
