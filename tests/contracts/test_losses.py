"""One suite over every loss of the table.

Every loss is differentiable at the points used here: where it makes a choice (the nearest centre, a negative, medoids,
the hardest pairs), a small change of the embeddings does not change it. One loss draws at random:
``evaluate`` seeds it.
"""

import copy
import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from softtriple.losses import LOSSES, Loss, build_loss
from softtriple.losses.build import KINDS

NUM_CLASSES, DIM = 5, 6

# Losses whose value is zero in a batch without a positive pair, and in a batch of one class.
OVER_PAIRS = ("semi-hard", "lifted", "clustering", "n-pairs", "margin", "htl")


def batch(size: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(size, DIM, generator=random, dtype=dtype)
    return embeddings, torch.arange(size) % NUM_CLASSES


def evaluate(loss: Loss, embeddings: Tensor, labels: Tensor) -> Tensor:
    torch.manual_seed(0)
    value: Tensor = loss(embeddings, labels)
    return value


@pytest.fixture(params=sorted(LOSSES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def loss(name: str) -> Loss:
    torch.manual_seed(0)
    return build_loss(name, NUM_CLASSES, DIM).double()


def test_value_is_a_finite_scalar(loss: Loss) -> None:
    value = evaluate(loss, *batch())
    assert value.shape == ()
    assert value.isfinite()
    assert value.dtype == torch.float64


def test_gradient_reaches_embeddings_and_every_parameter(loss: Loss) -> None:
    embeddings, labels = batch()
    embeddings.requires_grad_()
    evaluate(loss, embeddings, labels).backward()
    for tensor in [embeddings, *loss.parameters()]:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0


def test_gradient_is_that_of_finite_differences(loss: Loss) -> None:
    embeddings, labels = batch()
    parameters = dict(loss.named_parameters())

    def function(x: Tensor, *values: Tensor) -> Tensor:
        torch.manual_seed(0)
        value: Tensor = functional_call(loss, dict(zip(parameters, values, strict=True)), (x, labels))
        return value

    assert torch.autograd.gradcheck(function, (embeddings.requires_grad_(), *parameters.values()))


def test_order_of_the_batch_does_not_matter(name: str, loss: Loss) -> None:
    embeddings, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    if name == "n-pairs":  # the first of a class is the anchor: classes may change places, not their examples
        order = torch.cat([(labels == label).nonzero().flatten() for label in (3, 1, 4, 0, 2)])
    if name == "margin":  # in expectation: other rows draw other negatives
        torch.manual_seed(0)
        ordered, shuffled = (
            torch.stack([loss(embeddings[rows], labels[rows]) for _ in range(400)])
            for rows in (torch.arange(len(labels)), order)
        )
        error = (ordered.var() / len(ordered) + shuffled.var() / len(shuffled)).sqrt()
        assert (ordered.mean() - shuffled.mean()).abs() < 4 * error
        return
    torch.testing.assert_close(evaluate(loss, embeddings[order], labels[order]), evaluate(loss, embeddings, labels))


DEGENERATE = {
    "one class only": ([0, 1, 2], [1, 1, 1]),
    "all classes different": ([0, 1, 2, 3], [0, 1, 2, 3]),
    "duplicates": ([0, 0, 0, 0], [0, 0, 1, 1]),
    "duplicates of one class": ([0, 0, 0], [2, 2, 2]),
    "one example": ([0], [4]),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_batches_have_a_value_and_a_gradient(loss: Loss, case: str) -> None:
    rows, labels = DEGENERATE[case]
    embeddings = batch()[0][rows].requires_grad_()
    value = evaluate(loss, embeddings, torch.tensor(labels))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("name", OVER_PAIRS)
@pytest.mark.parametrize("case", ["one class only", "all classes different", "one example"])
def test_a_batch_without_pairs_has_the_value_zero(name: str, case: str) -> None:
    rows, labels = DEGENERATE[case]
    options = {"l2": 0.0} if name == "n-pairs" else {}  # its other term is about each pair alone
    embeddings = batch()[0][rows].requires_grad_()
    value = build_loss(name, NUM_CLASSES, DIM, **options)(embeddings, torch.tensor(labels))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert embeddings.grad is not None
    assert embeddings.grad.abs().max().item() == pytest.approx(0, abs=1e-12)


def test_zero_vectors_have_a_value_and_a_gradient(loss: Loss) -> None:
    embeddings, labels = batch()
    embeddings[[0, 5, 7]] = 0
    value = evaluate(loss, embeddings.requires_grad_(), labels)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


def test_training_lowers_the_loss(loss: Loss) -> None:
    embeddings, labels = batch()
    embeddings.requires_grad_()
    before = evaluate(loss, embeddings, labels).item()
    optimizer = torch.optim.Adam([embeddings, *loss.parameters()], lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        evaluate(loss, embeddings, labels).backward()
        optimizer.step()
    assert evaluate(loss, embeddings, labels).item() < before - 0.3 * abs(before)


def test_float32_is_close_to_float64(loss: Loss) -> None:
    embeddings, labels = batch()
    single = evaluate(copy.deepcopy(loss).float(), embeddings.float(), labels)
    torch.testing.assert_close(single.double(), evaluate(loss, embeddings, labels), rtol=1e-4, atol=1e-4)


def test_autocast_computes_in_float32(loss: Loss) -> None:
    embeddings, labels = batch(dtype=torch.float32)
    loss = loss.float()
    with torch.autocast("cpu", torch.bfloat16):
        value = evaluate(loss, embeddings, labels)
    torch.testing.assert_close(value, evaluate(loss, embeddings, labels))


def test_examples_per_class(name: str, loss: Loss) -> None:
    wanted = {"n-pairs": 2, "semi-hard": 4, "lifted": 4, "clustering": 4, "margin": 5, "htl": 4}
    assert loss.per_class == wanted.get(name)


def test_it_has_the_interface_of_the_training_loop(name: str, loss: Loss) -> None:
    embeddings, labels = batch()
    loss.start_epoch(embeddings, labels)
    assert loss.looks_ahead == (name == "htl")
    assert (loss.choose_classes(torch.tensor([3, 1])) is not None) == (name == "htl")
    assert (loss.shard, loss.sparse_gradients) == (None, False)
    assert sum(p.numel() for group in loss.param_groups() for p in group["params"]) * 8 == loss.gradient_bytes(12)
    predicted, distinct = loss.predict(embeddings), loss.distinct_centers()
    if loss.centers is None:
        assert predicted is distinct is None
        return
    assert torch.equal(predicted, loss.similarities(embeddings).argmax(dim=1))
    assert distinct.tolist() == [loss.centers.shape[1]] * NUM_CLASSES
    loss.initialize_centers(embeddings, labels)
    assert loss.centers.isfinite().all()
    assert evaluate(loss, embeddings, labels).isfinite()


def test_its_options_have_known_types(name: str) -> None:
    for parameter in inspect.signature(LOSSES[name]).parameters.values():
        _, fits = KINDS[parameter.annotation]
        assert parameter.default is parameter.empty or fits(parameter.default)


def test_it_is_documented_with_its_options(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    sections = [section for section in page.split("\n## ") if f"`{name}`" in section.partition("\n")[0]]
    assert len(sections) == 1
    if "paper.md" not in sections[0]:  # the losses of the paper itself have a page of their own
        options = inspect.signature(LOSSES[name]).parameters.keys() - {"num_classes", "embedding_size", "validate"}
        missing = [option for option in options if f"`{option}" not in sections[0]]
        assert not missing
