"""A ``map`` by threads that works ahead, but only so far."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def map_ahead(function: Callable[[A], B], inputs: Iterable[A], workers: int) -> Generator[B, None, None]:
    """``function`` of each of ``inputs``, in order, by ``workers`` threads at most two results each ahead.

    Bounded, so a slow consumer does not fill the memory. When the consumer stops or ``function`` raises, what has not
    begun is dropped and the threads are joined. Zero workers means in the calling thread.
    """
    if workers == 0:
        yield from map(function, inputs)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="softtriple-data")
    pending: deque[Future[B]] = deque()
    try:
        for value in inputs:
            pending.append(pool.submit(function, value))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
