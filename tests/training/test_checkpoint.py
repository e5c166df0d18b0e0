"""Checkpoints: the newest two, whole; a flipped bit, a stranger's state or another version is refused."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from softtriple.losses import Loss, SoftmaxLoss, SoftTripleLoss, sample_classes
from softtriple.training.checkpoint import KEEP, Position, _own_states, load_checkpoint, read_state, save_checkpoint
from softtriple.training.optim import RowAdam


def parts(width: int = 3) -> tuple[nn.Module, Loss, torch.optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(0)
    encoder, loss = nn.Linear(width, 2), SoftmaxLoss(2, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *loss.parameters()])
    loss(encoder(torch.ones(4, width)), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
    return encoder, loss, optimizer, torch.amp.GradScaler("cpu")


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    encoder, *others = parts()
    for epoch in (1, 99_999, 100_000):  # more digits than the name has room for
        save_checkpoint(tmp_path, Position(epoch, loss_sum=0.1), encoder, *others)
    assert len(list(tmp_path.iterdir())) == KEEP
    fresh = parts()
    with torch.no_grad():
        fresh[0].weight.zero_()  # type: ignore[operator]
    assert load_checkpoint(tmp_path, *fresh) == Position(100_000, loss_sum=0.1)
    assert torch.equal(fresh[0].weight, encoder.weight)  # type: ignore[arg-type]


def test_one_process_copies_no_rows_of_sampled_classes() -> None:
    loss = sample_classes(SoftTripleLoss(6, 4, 2), 0.5)
    optimizer = RowAdam(list(loss.parameters()))
    loss(torch.randn(3, 4), torch.arange(3)).backward()
    optimizer.step()
    loss_state, optimizer_state = loss.state_dict(), optimizer.state_dict()
    own_loss, own_optimizer = _own_states(loss, optimizer, loss_state, optimizer_state)
    assert own_loss["loss.centers"] is loss_state["loss.centers"]
    assert own_optimizer["state"][0]["exp_avg"] is optimizer_state["state"][0]["exp_avg"]


def test_no_flipped_bit_is_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Position(1), *parts())
    (file,) = tmp_path.iterdir()
    content, draw = file.read_bytes(), random.Random(0)
    state = read_state(file)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            found = read_state(file)
        except ValueError as error:
            reason = str(error)
            assert str(file) in reason
            continue
        for name, tensor in state["encoder"].items():
            assert torch.equal(found["encoder"][name], tensor)


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, Position(1), *parts())
    with pytest.raises(ValueError, match=r"epoch-00001.*not a checkpoint of this run"):
        load_checkpoint(tmp_path, *parts(width=5))


@pytest.mark.parametrize("change", [{"format": 2}, {"format": None}])
def test_another_version_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    file = tmp_path / "epoch-00001.pt"
    torch.save({"format": 1, "position": dataclasses.asdict(Position()), **change}, file)
    with pytest.raises(ValueError, match="another version of softtriple"):
        read_state(file)


def test_a_full_disk_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, Position(1), *parts())
    monkeypatch.setattr("softtriple.files.secrets.token_hex", lambda count: "full")
    (tmp_path / ".softtriple-partial-full.pt").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"epoch-00002-.*: cannot be written \(No space left on device\)"):
        save_checkpoint(tmp_path, Position(2), *parts())
    assert [file.name for file in tmp_path.iterdir()] == ["epoch-00001-batch-0000000.pt"]


def test_the_scale_of_half_precision_comes_back(tmp_path: Path) -> None:
    *others, scaler = parts()
    scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0, "_growth_tracker": 5})
    save_checkpoint(tmp_path, Position(1), *others, scaler)
    *others, fresh = parts()
    load_checkpoint(tmp_path, *others, fresh)
    assert fresh.state_dict() == scaler.state_dict()
