"""IPv4 sockets and threads that outlive a block of code."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")  # Linux only; elsewhere sockets are not checked


@contextmanager
def nothing_left_open(seconds: float = 10.0) -> Iterator[None]:
    """Fail if an IPv4 socket or a non-daemon thread made in the block is still there ``seconds`` after it."""
    sockets, threads = open_sockets().keys(), set(threading.enumerate())
    yield
    deadline = time.monotonic() + seconds
    while left := [*new_ipv4_sockets(sockets), *new_threads(threads)]:
        assert time.monotonic() < deadline, f"left open: {', '.join(left)}"
        time.sleep(0.01)


def open_sockets() -> dict[str, int]:
    """Descriptors of this process's sockets by inode; unlike a descriptor, an inode is not soon used again."""
    sockets = {}
    for link in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        with suppress(FileNotFoundError):  # closed meanwhile, as the one that lists the folder is
            target = str(link.readlink())
            if target.startswith("socket:"):
                sockets[target] = int(link.name)
    return sockets


def new_ipv4_sockets(known: Set[str]) -> Iterator[str]:
    """Descriptions of the IPv4 sockets beyond ``known``.

    Our servers and their clients use IPv4. Runtimes keep local sockets to wake their threads, and Milvus Lite keeps its
    embedded gRPC server, which uses IPv6, until the process ends.
    """
    for inode, descriptor in open_sockets().items():
        if inode not in known:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.family == socket.AF_INET:
                    yield f"socket at {copy.getsockname()}"


def new_threads(known: set[threading.Thread]) -> Iterator[str]:
    """Names of the non-daemon threads beyond ``known``."""
    for thread in threading.enumerate():
        if thread not in known and not thread.daemon:
            yield f"thread {thread.name}"
