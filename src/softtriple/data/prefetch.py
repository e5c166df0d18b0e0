"""A parallel ``map`` that computes a bounded number of results ahead of its consumer."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

MAX_WORKERS = 16


def map_ahead(function: Callable[[A], B], inputs: Iterable[A], workers: int | None = None) -> Generator[B, None, None]:
    """Yield ``function`` of each of ``inputs`` in order, computed by ``workers`` threads.

    At most two results per worker are computed in advance, so a slow consumer does not fill memory. When the consumer
    stops or ``function`` raises, pending work is cancelled and the threads are joined. None uses one worker per CPU,
    0 the calling thread.
    """
    if workers is None:
        workers = min(os.cpu_count() or 1, MAX_WORKERS)
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
