"""Adam over rows: torch's own where every row learns, and nothing at all where a row does not."""

import copy

import pytest
import torch
from torch import Tensor, nn

from softtriple.config import Config, TrainConfig, with_settings
from softtriple.losses import SoftTripleLoss, sample_classes
from softtriple.models import Encoder, EncoderConfig
from softtriple.training.optim import RowAdam, build_optimizer, cosine_factor, set_rates


def sparse(rows: list[int], values: Tensor, count: int) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([rows]), values, (count, *values.shape[1:]), check_invariants=True, dtype=values.dtype
    )


def gradients(steps: int, count: int = 6) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(count, 2, 3, generator=random) for _ in range(steps)]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("form", ["sparse", "dense", "twice"])
def test_where_every_row_learns_it_is_adam(monkeypatch: pytest.MonkeyPatch, weight_decay: float, form: str) -> None:
    monkeypatch.setattr("softtriple.training.optim.AT_ONCE_CPU", 12)  # two rows at once
    expected, found = (nn.Parameter(torch.linspace(-1, 1, 36).view(6, 2, 3)) for _ in range(2))
    options = {"lr": 0.01, "eps": 1e-3, "weight_decay": weight_decay}
    adam, rows = torch.optim.Adam([expected], **options), RowAdam([found], **options)
    for gradient in gradients(20):
        expected.grad = gradient
        if form == "dense":
            found.grad = gradient.clone()
        elif form == "sparse":
            found.grad = sparse([0, 1, 2, 3, 4, 5], gradient, 6)
        else:  # as accumulated batches give it
            halves = torch.cat([gradient / 4, 3 * gradient / 4])
            found.grad = sparse([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], halves, 6)
        adam.step()
        rows.step()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(rows.state[found]["exp_avg_sq"], adam.state[expected]["exp_avg_sq"])


def test_each_row_is_a_parameter_of_its_own() -> None:
    """Rows that learn in different steps: each is where Adam over that row alone would have brought it."""
    start = torch.linspace(-1, 1, 36).view(6, 2, 3)
    found = nn.Parameter(start.clone())
    alone = [nn.Parameter(row.clone()) for row in start]
    rows, adams = RowAdam([found], lr=0.1), [torch.optim.Adam([row], lr=0.1) for row in alone]
    for number, gradient in enumerate(gradients(30)):
        chosen = [row for row in range(5) if (number + row) % (row + 1) == 0]  # the last one never
        found.grad = sparse(chosen, gradient[chosen], 6)
        rows.step()
        for row in chosen:
            alone[row].grad = gradient[row]
            adams[row].step()
    torch.testing.assert_close(found.detach(), torch.stack([row.detach() for row in alone]))
    assert torch.equal(found[5], start[5])
    assert rows.state[found]["step"].tolist() == [30, 15, 10, 8, 6, 0]


def test_its_state_is_saved_and_loaded() -> None:
    found = nn.Parameter(torch.ones(6, 2, 3))
    first = RowAdam([found], lr=0.1)
    values = gradients(3)
    for gradient in values[:2]:
        found.grad = sparse([1, 4], gradient[:2], 6)
        first.step()
    copied = nn.Parameter(found.detach().clone())
    second = RowAdam([copied], lr=0.1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for parameter, optimizer in ((found, first), (copied, second)):
        parameter.grad = sparse([0, 4], values[2][:2], 6)
        optimizer.step()
    assert torch.equal(found, copied)
    elsewhere = nn.Parameter(torch.ones(6, 2, 3, device="meta"))
    third = RowAdam([elsewhere], lr=0.1)
    third.load_state_dict(first.state_dict())
    assert {value.device.type for value in third.state[elsewhere].values()} == {"meta"}


def test_classes_not_drawn_do_not_move() -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(backbone="mlp", in_features=6, hidden=(8,), dim=4))
    whole = SoftTripleLoss(50, 4, 2)
    loss = sample_classes(whole, 0.1)
    optimizer = build_optimizer(encoder, loss, TrainConfig(lr=1e-3))
    assert isinstance(optimizer, RowAdam)
    before = copy.deepcopy((whole.centers.detach(), encoder.head.weight.detach()))
    loss(encoder(torch.randn(3, 6)), torch.tensor([7, 9, 9])).backward()
    optimizer.step()
    moved = (whole.centers != before[0]).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert len(moved) == 5
    assert {7, 9} <= set(moved)
    assert not torch.equal(encoder.head.weight, before[1])


@pytest.mark.parametrize("epochs", [1, 4, 10])
def test_the_cosine_falls_from_one_and_scales_with_the_epochs(epochs: int) -> None:
    factors = [cosine_factor(epoch, epochs) for epoch in range(epochs)]
    assert factors[0] == 1
    assert factors == sorted(factors, reverse=True)
    assert cosine_factor(epochs, epochs) == pytest.approx(0)
    assert cosine_factor(epochs, 2 * epochs) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("schedule", "epoch", "factor"), [("step", 1, 1.0), ("step", 2, 0.1), ("step", 3, 0.01), ("cosine", 2, 0.5)]
)
def test_rates_follow_the_schedule(schedule: str, epoch: int, factor: float) -> None:
    settings = ["train.epochs=4", "train.lr=0.2", "train.milestones=[2, 3]", f"train.schedule={schedule}"]
    config = with_settings(Config(), settings).train
    encoder, loss = Encoder.from_backbone("linear", dim=2, in_features=3), SoftTripleLoss(2, 2)
    optimizer = build_optimizer(encoder, loss, config)
    set_rates(optimizer, epoch, config)
    assert {group["part"]: group["lr"] for group in optimizer.param_groups} == pytest.approx(
        {"head": 0.2 * factor, "loss": 0.01 * factor}
    )
