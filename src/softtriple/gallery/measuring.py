"""The nearest other item of every item, found in the background: minutes for a large store, which no page waits for."""

import os
import sys
import threading
from collections.abc import Callable

from softtriple.gallery.analysis import Snapshot

THREAD = "gallery-measuring"
BLOCK = 512  # items at a time: a fraction of a second
SHORT = 1.0  # seconds that a request waits, so that a small store is measured at once


class Measuring:
    """Measures the items of the latest snapshot, in random order; used by one thread besides its own."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self, snapshot: Snapshot) -> None:
        """Measure ``snapshot``, if that has not begun, and wait for a moment."""
        if snapshot is self._snapshot:
            return
        self.close()
        self._snapshot, self._stop = snapshot, threading.Event()
        stop = self._stop
        self._thread = in_background(THREAD, lambda: _measure(snapshot, stop))
        self._thread.join(SHORT)

    def close(self) -> None:
        """Stop within a fraction of a second."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._snapshot = self._thread = None


def in_background(name: str, work: Callable[[], object]) -> threading.Thread:
    """A thread that does ``work`` when the requests leave it time."""

    def run() -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # of this thread and those it starts
        work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _measure(snapshot: Snapshot, stop: threading.Event) -> None:
    for start in range(0, len(snapshot.items), BLOCK):
        if stop.is_set():
            return
        snapshot.taken(snapshot.order[start : start + BLOCK])
