"""Threads for the work behind a request, with a bounded queue and a time limit.

The event loop must never wait for the encoder or a disk. Starlette's own thread pool would do, but it queues without
bound and cannot give up on work that takes too long.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from starlette.exceptions import HTTPException

Result = TypeVar("Result")

# Seconds after which a client that was turned away may ask again.
RETRY_AFTER = {"Retry-After": "2"}


class Workers:
    """A few threads; work that would wait behind too much other work is turned away at once (429)."""

    def __init__(self, name: str, *, threads: int, queue: int, seconds: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"gallery-{name}")
        self._limit, self._seconds = threads + queue, seconds
        self._pending = 0  # touched in the event loop only

    async def run(self, work: Callable[[], Result]) -> Result:
        """What ``work`` returns, computed in a thread."""
        if self._pending >= self._limit:
            raise HTTPException(429, "the server is busy: try again in a moment", RETRY_AFTER)
        loop = asyncio.get_running_loop()
        future = self._executor.submit(work)
        self._pending += 1
        # Work that nobody waits for any more still occupies its thread: it counts until it is done.
        future.add_done_callback(lambda done: self._tell(loop, done))
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise HTTPException(
                429, f"not done within {self._seconds:g} seconds: try again in a moment", RETRY_AFTER
            ) from None

    def close(self) -> None:
        """Let the threads end when their present work is done; what is queued is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _tell(self, loop: asyncio.AbstractEventLoop, _: "Future[Result]") -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._pending -= 1
