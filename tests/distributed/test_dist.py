"""What ranks tell each other."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.workers import Workers
from torch import Tensor, nn

from softtriple import dist


def told(folder: Path) -> dict[str, Any]:
    rank = dist.rank()
    rows = torch.full((rank, 2), float(rank))  # as many rows as the rank: the first has none
    whole = dist.rows_on_main(torch.arange(6).view(3, 2)[: 3 - rank] + 10 * rank, folder)
    norm = nn.BatchNorm1d(2)
    norm.running_mean.fill_(rank + 5)
    dist.sync_buffers(norm)
    return {
        "share": dist.share(5),
        "from_main": dist.from_main(lambda: f"made by {rank}"),
        "any": dist.any_rank(rank == 2, False),
        "stack": dist.stack(torch.tensor(rank)),
        "objects": dist.gather_objects(rank * "a"),
        "rows": dist.gather_rows(rows),
        "numbers": dist.gather_rows(torch.tensor([rank])),
        "sum": dist.sum_(torch.tensor([rank, 1])),
        "whole": whole.clone(),
        "files": [path.name for path in folder.iterdir()],
        "buffers": norm.running_mean,
    }


def test_what_ranks_tell_each_other(workers: Workers, tmp_path: Path) -> None:
    found = workers.run(3, told, tmp_path)
    assert [one["share"] for one in found] == [slice(0, 2), slice(2, 4), slice(4, 5)]
    whole = torch.tensor([[0, 1], [2, 3], [4, 5], [10, 11], [12, 13], [20, 21]])
    for rank, one in enumerate(found):
        assert one["from_main"] == "made by 0"
        assert one["any"] == [True, False]
        assert one["stack"].tolist() == [0, 1, 2]
        assert one["objects"] == ["", "a", "aa"]
        assert one["rows"].tolist() == [[1, 1], [2, 2], [2, 2]]
        assert one["numbers"].tolist() == [0, 1, 2]
        assert one["sum"].tolist() == [3, 3]
        assert torch.equal(one["whole"], whole if rank == 0 else whole[[3, 4] if rank == 1 else [5]])
        assert one["files"] == []
        assert one["buffers"].tolist() == [5, 5]


def write_once(file: Path) -> str:
    with dist.main_first():
        if not file.exists():
            file.write_text(f"written by {dist.rank()}")
    return file.read_text()


def test_the_first_rank_goes_first(workers: Workers, tmp_path: Path) -> None:
    assert workers.run(4, write_once, tmp_path / "file") == ["written by 0"] * 4


def fail_in_turn() -> str:
    try:
        with dist.main_first():
            raise ValueError(f"rank {dist.rank()} fails")
    except ValueError as error:
        return str(error)


def test_an_error_of_the_first_is_met_by_all(workers: Workers) -> None:
    assert workers.run(3, fail_in_turn) == [f"rank {rank} fails" for rank in range(3)]


def gathered_gradient() -> tuple[Tensor, Tensor]:
    rank = dist.rank()
    mine = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    everything, labels = dist.gather_batch(mine, torch.full((rank + 1,), rank))
    # Each rank weighs the rows of all differently; a rank's rows get the sum of what the ranks ask of them.
    weights = torch.arange(1.0, 4.0)[labels] * (10.0**rank)
    (everything.sum(dim=1) * weights).sum().backward()
    assert mine.grad is not None
    return labels, mine.grad


def test_gradients_of_gathered_rows_are_summed_over_ranks(workers: Workers) -> None:
    for rank, (labels, gradient) in enumerate(workers.run(3, gathered_gradient)):
        assert labels.tolist() == [0, 1, 1, 2, 2, 2]
        assert gradient.tolist() == [[111.0 * (rank + 1)] * 2] * (rank + 1)


def shared_norm() -> tuple[Tensor, Tensor]:
    torch.manual_seed(dist.rank())  # other weights on every rank
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model = dist.data_parallel(module)
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    model(inputs[dist.share(8)]).square().sum().backward()
    dist.sync_buffers(module)
    return module[0].weight.detach(), module[1].running_mean


def test_data_parallel_modules_start_and_stay_alike(workers: Workers) -> None:
    (first, means), *others = workers.run(2, shared_norm)
    for weight, mean in others:
        assert torch.equal(weight, first)
        assert torch.equal(mean, means)


def frozen() -> bool:
    module = nn.Linear(2, 2).requires_grad_(False)
    return dist.data_parallel(module) is module


def test_nothing_to_learn_needs_no_averaging(workers: Workers) -> None:
    assert workers.run(2, frozen) == [True, True]


def test_a_connection_that_breaks_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist.torch_dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist.torch_dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(dist.torch_dist, "new_group", lambda **_: None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(ConnectionError, match="--resume"), dist.joined():
            raise RuntimeError("[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4567")
        os.kill(os.getpid(), signal.SIGTERM)  # what torchrun sends then: the sentence must still be said
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(RuntimeError, match="something else"), dist.joined():
        raise RuntimeError("something else")
