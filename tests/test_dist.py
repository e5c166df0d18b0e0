"""In one process, the identity."""

from pathlib import Path

import torch
from torch import nn

from softtriple import dist


def test_in_one_process_everything_is_the_identity(tmp_path: Path) -> None:
    rows, labels, module = torch.randn(4, 3, requires_grad=True), torch.arange(4), nn.Linear(3, 2)
    assert (dist.rank(), dist.world_size(), dist.is_main()) == (0, 1, True)
    with dist.joined(), dist.main_first():
        dist.barrier()
    assert dist.share(7) == slice(0, 7)
    assert dist.from_main(lambda: "made") == "made"
    assert dist.any_rank(True, False) == [True, False]
    assert torch.equal(dist.stack(labels), labels[None])
    assert dist.gather_objects("one") == ["one"]
    assert dist.gather_rows(rows) is rows
    assert dist.sum_(rows) is rows
    assert dist.rows_on_main(rows, tmp_path) is rows
    assert dist.data_parallel(module) is module
    dist.sync_buffers(module)
    gathered, all_labels = dist.gather_batch(rows, labels)
    assert gathered is rows
    assert all_labels is labels
