"""Thread pools with a bounded queue and a time limit, so that the event loop never waits for the encoder or a disk.

Starlette's own thread pool queues without limit and cannot give up on work that takes too long.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import torch
from starlette.exceptions import HTTPException
from threadpoolctl import threadpool_limits

Question = TypeVar("Question")
Result = TypeVar("Result")

# Seconds after which a rejected client may try again.
RETRY_AFTER = {"Retry-After": "2"}
# Turns of the event loop, of some 20 µs if it has nothing to do; a request takes two until its question waits.
TURNS = 4


class Workers:
    """A few threads; work is rejected at once (429) while the queue is full.

    Each thread computes on one core, unless ``all_cores``.
    """

    def __init__(self, name: str, *, threads: int, queue: int, seconds: float, all_cores: bool = False) -> None:
        self._executor = ThreadPoolExecutor(
            threads, thread_name_prefix=f"gallery-{name}", initializer=None if all_cores else one_core
        )
        self._limit, self._seconds = threads + queue, seconds
        self._pending = 0  # changed in the event loop only

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of ``work``, computed in a thread."""
        if self._pending >= self._limit:
            raise HTTPException(429, "the server is busy, try again in a moment", RETRY_AFTER)
        loop = asyncio.get_running_loop()
        try:
            future = self._executor.submit(work)
        except RuntimeError:  # no more threads, or shutting down
            raise HTTPException(503, "the server cannot start more work, try again in a moment", RETRY_AFTER) from None
        self._pending += 1
        # Work that timed out still occupies its thread, so it counts until it is done.
        future.add_done_callback(lambda done: self._notify(loop, done))
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            message = f"not finished within {self._seconds:g} seconds, try again in a moment"
            raise HTTPException(429, message, RETRY_AFTER) from None

    def close(self) -> None:
        """Drop queued work and let the threads end after their current work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _notify(self, loop: asyncio.AbstractEventLoop, _: "Future[Result]") -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._pending -= 1


def one_core() -> AbstractContextManager[Any]:
    """Let this thread compute on one core, from now on or, as a context, for a while.

    A thread that computes on all cores gets a team of threads. Once there are more of them than cores, OpenMP no longer
    lets them spin between two layers of a network: they sleep and have to be woken at each. So only the thread that
    encodes has a team.
    """
    torch.get_num_threads()  # sets this thread up, which would undo the limit if it came later
    limit: AbstractContextManager[Any] = threadpool_limits(1, user_api="openmp")
    return limit


class Batches(Generic[Question, Result]):
    """Questions that arrive while others are being answered, answered together by one call of ``answer``.

    ``answer`` returns a result, or an exception, for each question. The number of waiting questions is not limited
    here: `Settings.max_requests` is.
    """

    def __init__(
        self,
        workers: Workers,
        answer: Callable[[Sequence[Question]], Sequence[Result | Exception]],
        *,
        at_once: int = 1,
    ) -> None:
        self._workers, self._answer, self._free = workers, answer, at_once
        self._waiting: list[tuple[Question, asyncio.Future[Result]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Result:
        """The answer to ``question``."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._free:
            self._free -= 1
            task = asyncio.create_task(self._work())
            self._tasks.add(task)  # the event loop itself keeps no reference to a task
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _work(self) -> None:
        try:
            while batch := await self._gathered():
                results = await self._results([question for question, _ in batch])
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():  # the client has gone
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._free += 1

    async def _gathered(self) -> "list[tuple[Question, asyncio.Future[Result]]]":
        """The waiting questions, once none has come during some turns of the event loop.

        Clients that were answered together ask again one after the other. The first of them does not go alone: one
        search for many takes a fraction of the time of many searches, which would also compete with the event loop.
        """
        turns = 0
        while self._waiting and turns < TURNS:
            before = len(self._waiting)
            await asyncio.sleep(0)
            turns = turns + 1 if len(self._waiting) == before else 0
        batch, self._waiting = self._waiting, []
        return batch

    async def _results(self, questions: list[Question]) -> Sequence[Result | Exception]:
        try:
            return await self._workers.run(lambda: self._answer(questions))
        except Exception as error:
            return [error] * len(questions)
