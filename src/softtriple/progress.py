"""Progress of long tasks on standard error: a bar on a terminal, plain lines when piped."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from softtriple.errors import escaped

Update = Callable[..., None]

SECONDS_BETWEEN_LINES = 10.0


class Reporter:
    """Prints notes and the progress of tasks; with ``quiet``, for ranks other than the first, nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line."""
        if not self._quiet:
            self._console.print(escaped(text, keep="\n"), markup=False)

    @contextmanager
    def task(self, name: str) -> Iterator[Update]:
        """Report a long task: yields a function to call with (done, total, detail), as often as you like."""
        if self._quiet:
            yield lambda *_: None
        elif self._console.is_terminal:
            with self._bar(name) as update:
                yield update
        else:
            yield self._lines(name)

    @contextmanager
    def _bar(self, name: str) -> Iterator[Update]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[detail]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(name, total=None, detail="")

            def update(done: int, total: int, detail: str = "") -> None:
                progress.update(task, completed=done, total=total, detail=detail)

            yield update

    def _lines(self, name: str) -> Update:
        last = time.monotonic()
        start: tuple[float, int] | None = None

        def update(done: int, total: int, detail: str = "") -> None:
            nonlocal last, start
            now = time.monotonic()
            if start is None:
                start = now, done  # a resumed task does not start at 0: measure the speed from here
            elif now - last >= SECONDS_BETWEEN_LINES:
                last = now
                left = (now - start[0]) * (total - done) / max(done - start[1], 1)
                self.note(f"{name}: {done} of {total}, about {duration(left)} left{'; ' + detail if detail else ''}")

        return update


def one_line(text: str) -> str:
    """``text`` without line breaks and control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def duration(seconds: float) -> str:
    """A length of time for people.

    Example:
        >>> duration(45.0), duration(200.0), duration(32_000.0)
        ('45 s', '3 min', '8.9 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
