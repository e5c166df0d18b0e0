"""What all losses share: validation, NumPy input, the interface of the training loop, and modules of the user's own."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softtriple import SoftTripleLoss
from softtriple.errors import UserError
from softtriple.losses import LOSSES, HTLLoss, Loss, MarginLoss, as_loss, build_loss, sample_classes

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (torch.randn(2, 5), torch.tensor([0, 1]), "embeddings have shape (2, 5), expected (batch, 6)"),
        (torch.randn(6), torch.tensor([0]), "embeddings have shape (6,), expected (batch, 6)"),
        (torch.ones(2, 6, dtype=torch.int64), torch.tensor([0, 1]), "embeddings are torch.int64"),
        (np.ones((2, 6), dtype=np.int32), torch.tensor([0, 1]), "embeddings are torch.int32"),
        (np.full((2, 6), "x"), torch.tensor([0, 1]), "embeddings are a NumPy array of <U1"),
        ([[0.0] * 6] * 2, torch.tensor([0, 1]), "embeddings are a list"),
        (torch.randn(0, 6), torch.empty(0, dtype=torch.int64), "the batch is empty"),
        (torch.randn(2, 6), torch.tensor([0.0, 1.0]), "labels are torch.float32, expected integers"),
        (torch.randn(2, 6), np.array([0.0, 1.0]), "labels are torch.float64, expected integers"),
        (torch.randn(2, 6), np.array(["cat", "dog"]), "labels are a NumPy array of <U3, expected integers"),
        (torch.randn(2, 6), [0, 1], "labels are a list, expected a tensor or a NumPy array of integers"),
        (torch.randn(2, 6), torch.tensor([True, False]), "labels are torch.bool, expected integers"),
        (torch.randn(2, 6), torch.tensor([[0], [1]]), "labels have shape (2, 1), expected (2,)"),
        (torch.randn(2, 6), torch.tensor([0, 3]), "label 3 is out of range"),
        (torch.randn(2, 6), torch.tensor([0, 3]), "num_classes=3"),
        (torch.randn(2, 6), np.array([-1, 2]), "label -1 is out of range"),
        (torch.tensor([[1.0] * 6, [float("nan")] * 6]), torch.tensor([0, 1]), "in 1 of 2 rows (first: row 1)"),
        (torch.tensor([[float("-inf")] * 6] * 2), torch.tensor([0, 1]), "in 2 of 2 rows (first: row 0)"),
        (torch.full((2, 6), 3e38), torch.tensor([0, 1]), "overflowing values in 2 of 2 rows"),
    ],
)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_batches_that_do_not_fit(name: str, embeddings: Any, labels: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        build_loss(name, 3, 6)(embeddings, labels)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_numpy_arrays_are_as_good_as_tensors(name: str) -> None:
    embeddings, labels = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    loss = build_loss(name, 3, 6)
    arrays = embeddings.numpy()[::-1], labels.numpy()[::-1].astype(np.uint16)  # not contiguous, not int64
    arrays[0].flags.writeable = False
    values = []
    for batch in ((embeddings.flip(0), labels.flip(0)), arrays, (embeddings.flip(0), arrays[1])):
        torch.manual_seed(0)
        values.append(loss(*batch))
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    predicted = loss.predict(embeddings)
    assert predicted is None or torch.equal(predicted, loss.predict(embeddings.numpy()))


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    ],
)
def test_integer_labels_of_any_type(dtype: torch.dtype) -> None:
    loss, embeddings, labels = SoftTripleLoss(3, 4), torch.randn(3, 4), torch.tensor([2, 0, 1])
    torch.testing.assert_close(loss(embeddings, labels.to(dtype)), loss(embeddings, labels))


def test_values_are_not_checked_without_validate() -> None:
    loss = SoftTripleLoss(3, 4, validate=False)
    assert loss(torch.full((2, 4), float("nan")), torch.tensor([0, 1])).isnan()
    with pytest.raises(UserError, match="embeddings have shape"):
        loss(torch.randn(2, 5), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("num_classes", value) for value in (0, 2.0, True, "3")),
        *(("embedding_size", value) for value in (0, -1)),
        *(("gamma", value) for value in (0.0, float("nan"), "abc")),
    ],
)
def test_constructors_check_their_arguments(option: str, value: Any) -> None:
    with pytest.raises(UserError, match=re.escape(f"{option} = {value!r} must be")):
        SoftTripleLoss(**{"num_classes": 3, "embedding_size": 4, option: value})


class Prototypes(nn.Module):
    """A loss of the user's own."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(num_classes, dim))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return (embeddings - self.vectors[labels]).square().sum(dim=1).mean()


class Demanding(Prototypes):
    """One that also makes use of the interface."""

    per_class = 3

    def start_epoch(self, embeddings: Tensor, labels: Tensor) -> None:
        self.seen = len(labels)

    def choose_classes(self, anchors: Tensor) -> Tensor:
        return anchors[:, None]

    def predict(self, embeddings: Tensor) -> Tensor:
        return torch.cdist(embeddings, self.vectors).argmin(dim=1)

    def param_groups(self, *modules: nn.Module, lr: float = 1e-4, center_lr: float = 1e-2) -> list[dict[str, Any]]:
        return [{"params": [self.vectors], "lr": 7.0}]


def test_defaults_of_the_interface() -> None:
    loss = as_loss(Prototypes(3, 4), 3, 4)
    assert (loss.per_class, loss.looks_ahead, loss.sparse_gradients) == (None, False, False)
    assert loss.centers is loss.shard is None
    assert loss.choose_classes(torch.arange(3)) is None
    assert loss.distinct_centers() is None
    assert loss.predict(torch.randn(2, 4)) is None
    assert loss.working_bytes(32) == 0
    assert loss.gradient_bytes(32) == 3 * 4 * 4
    (group,) = loss.param_groups(center_lr=0.5)
    assert (len(group["params"]), group["lr"]) == (1, 0.5)


def test_any_module_is_a_loss_with_its_state() -> None:
    module = Prototypes(3, 4)
    loss = as_loss(module, 3, 4)
    embeddings, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(loss(embeddings, labels), module(embeddings, labels))
    assert torch.equal(loss(embeddings.numpy(), labels.numpy().astype(np.int8)), module(embeddings, labels))
    with pytest.raises(UserError, match="label 9 is out of range"):
        loss(torch.randn(1, 4), torch.tensor([9]))
    other = as_loss(Prototypes(3, 4), 3, 4)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other(embeddings, labels), loss(embeddings, labels))


def test_members_that_a_module_defines_replace_the_defaults() -> None:
    loss = as_loss(Demanding(3, 4), 3, 4)
    assert (loss.per_class, loss.looks_ahead) == (3, True)
    assert loss.choose_classes(torch.tensor([2])).tolist() == [[2]]
    assert loss.param_groups()[0]["lr"] == 7.0
    twin = copy.deepcopy(loss)
    with torch.no_grad():
        twin.module.vectors.copy_(torch.eye(4)[:3])
    assert twin.predict(torch.eye(4)[[2, 0]]).tolist() == [2, 0]  # by its own vectors
    twin.start_epoch(torch.randn(5, 4), torch.zeros(5))
    assert twin.module.seen == 5
    assert not hasattr(loss.module, "seen")


@pytest.mark.parametrize(("value", "got"), [(torch.zeros(3), r"shape \(3,\)"), (1.5, "float")])
def test_a_module_must_return_a_scalar(value: object, got: str) -> None:
    class Wrong(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> object:
            return value

    with pytest.raises(UserError, match=f"Wrong returned {got}"):
        as_loss(Wrong(), 3, 4)(torch.randn(2, 4), torch.tensor([0, 1]))


def test_a_loss_must_have_the_sizes_of_the_data() -> None:
    loss = SoftTripleLoss(3, 4)
    assert as_loss(loss, 3, 4) is loss
    for sizes in ((5, 4), (3, 8)):
        with pytest.raises(UserError, match=f"num_classes=3, embedding_size=4.*num_classes={sizes[0]}, .*={sizes[1]}"):
            as_loss(loss, *sizes)


def test_param_groups_hold_every_parameter_once_at_its_own_rate() -> None:
    encoder, loss = nn.Linear(3, 8), SoftTripleLoss(4, 8)
    groups = loss.param_groups(encoder)
    assert [group["lr"] for group in groups] == [1e-4, 1e-2]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(p) for p in [*encoder.parameters(), *loss.parameters()])
    torch.optim.Adam(groups)
    assert len(loss.param_groups(center_lr=0.1)) == 1
    assert HTLLoss(4, 8).param_groups() == []


@pytest.mark.parametrize("loss", [SoftTripleLoss(20, 8), sample_classes(SoftTripleLoss(20, 8), 0.5), MarginLoss(20, 8)])
def test_memory_of_gradients_is_what_a_step_holds(loss: Loss) -> None:
    loss(torch.randn(4, 8), torch.arange(4)).backward()
    gradients = [p.grad._values() if p.grad.is_sparse else p.grad for p in loss.parameters() if p.grad is not None]
    assert loss.sparse_gradients == any(p.grad.is_sparse for p in loss.parameters() if p.grad is not None)
    assert loss.gradient_bytes(4) == sum(gradient.nbytes for gradient in gradients)
