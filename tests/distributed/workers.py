"""Four processes that run functions together, started once for all tests."""

import itertools
import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist  # noqa: TID251

LARGEST = 4
TIMEOUT = timedelta(minutes=2)  # ranks that wait for each other fail a test, and do not hold up all others


class Workers:
    """Processes that wait for functions to run as the ranks of one group."""

    def __init__(self, folder: Path) -> None:
        self._stores = (folder / f"store-{number}" for number in itertools.count())
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["softtriple.training"])  # torch is imported once, not once per process
        pipes = [context.Pipe() for _ in range(LARGEST)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [context.Process(target=_serve, args=(theirs,), daemon=True) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def run(self, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What ``function(*arguments)`` returns on each rank of a group of ``world_size``."""
        store = str(next(self._stores))
        pipes = self._pipes[:world_size]
        for rank, pipe in enumerate(pipes):
            pipe.send((function, arguments, store, rank, world_size))
        answers = [pipe.recv() for pipe in pipes]
        errors = [f"rank {rank}:\n{answer}" for rank, (good, answer) in enumerate(answers) if not good]
        assert not errors, "\n".join(errors)
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes, which have nothing to lose."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are here, whatever the host's name resolves to
    while True:
        function, arguments, store, rank, world_size = pipe.recv()
        torch_dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=TIMEOUT
        )
        # A rank that is done at once would close its connections while another is still making them.
        torch_dist.barrier()
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        torch_dist.destroy_process_group()
