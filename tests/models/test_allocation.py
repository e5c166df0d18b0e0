"""Freed memory stays mapped within a block, and only there."""

import resource

import pytest
import torch

from softtriple.models import allocation
from softtriple.models.allocation import reusing_memory

glibc = pytest.mark.skipif(allocation._glibc() is None, reason="needs glibc")


def page_faults() -> int:
    """Pages mapped while 64 MB are written and freed eight times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.zeros(1 << 24).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc
def test_pages_are_mapped_once() -> None:
    pages = (1 << 26) // resource.getpagesize()
    with reusing_memory():
        page_faults()
        with reusing_memory():
            pass
        assert page_faults() < pages / 4  # also after an inner block has ended


@glibc
def test_memory_is_returned_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    class Recorded:
        def mallopt(self, *arguments: int) -> None:
            calls.append(arguments)

        def malloc_trim(self, *arguments: int) -> None:
            calls.append(arguments)

    monkeypatch.setattr(allocation, "_glibc", Recorded)
    with reusing_memory():
        with reusing_memory():
            pass
        entered = len(calls)
    assert calls[entered:] == [(-4, 65536), (-1, 131072), (0,)]
    assert (0,) not in calls[:entered]


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_glibc", lambda: None)
    with reusing_memory():
        assert allocation._depth == 0
