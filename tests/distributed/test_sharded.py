"""A loss over several ranks against the same loss in one process: value, and every gradient."""

import pytest
import torch
from tests.distributed.workers import Workers
from torch import Tensor, nn

from softtriple import dist
from softtriple.losses import LOSSES, NormalizedSoftmaxLoss, SoftTripleLoss, build_loss
from softtriple.losses.sharded import ShardedSoftTripleLoss, shard

DIM = 6
CASES = {
    "even": (12, [2, 2, 2, 2]),
    "classes do not divide": (7, [3, 3, 3, 3]),
    "unequal parts": (11, [4, 1, 3, 2]),
    "a rank without examples": (9, [3, 0, 2, 1]),
    "more ranks than classes": (2, [2, 3, 1, 2]),
    "classes of one rank alone": (40, [1, 1, 1, 0]),
}
VARIANTS = [(1, torch.float64), (3, torch.float64), (1, torch.float32), (3, torch.float32)]  # k, dtype


def problem(case: str, world_size: int, dtype: torch.dtype) -> tuple[int, list[int], Tensor, Tensor]:
    num_classes, sizes = CASES[case]
    sizes = sizes[:world_size]
    random = torch.Generator().manual_seed(sum(sizes))
    embeddings = torch.randn(sum(sizes), DIM, generator=random, dtype=torch.float64).to(dtype)
    labels = torch.randint(2 if num_classes == 40 else num_classes, (sum(sizes),), generator=random)
    return num_classes, sizes, embeddings, labels


def softtriple(num_classes: int, k: int, dtype: torch.dtype) -> SoftTripleLoss:
    torch.manual_seed(3)
    return SoftTripleLoss(num_classes, DIM, k, tau=0.3, margin=0.05).to(dtype)


def encode(linear: nn.Linear, loss: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Value and gradient of a linear encoder in front of ``loss``."""
    value = loss(linear(inputs), labels)
    value.backward()
    return value.item(), gradient(linear)


def gradient(linear: nn.Linear) -> Tensor:
    """Of the weights and, in the last column, of the bias."""
    assert linear.weight.grad is not None
    assert linear.bias.grad is not None
    return torch.cat([linear.weight.grad, linear.bias.grad[:, None]], dim=1)


def encoder(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(5)
    return nn.Linear(DIM, DIM).to(dtype)


def one_step(case: str, k: int, dtype: torch.dtype) -> tuple[float, Tensor, Tensor, range]:
    """What a rank finds: the value, the averaged gradient of the encoder, and that of its own centres."""
    num_classes, sizes, inputs, labels = problem(case, dist.world_size(), dtype)
    loss = shard(softtriple(num_classes, k, dtype))
    linear = encoder(dtype)
    model = dist.data_parallel(linear)
    mine = slice(sum(sizes[: dist.rank()]), sum(sizes[: dist.rank() + 1]))
    # A rank without examples runs one all the same, and gives nothing of it: DDP waits for every rank.
    outputs = model(inputs[mine] if sizes[dist.rank()] else inputs[:1])[: sizes[dist.rank()]]
    value = loss(outputs, labels[mine])
    value.backward()
    classes = loss.classes if isinstance(loss, ShardedSoftTripleLoss) else range(num_classes)
    return value.item(), gradient(linear), loss.centers.grad, classes


def steps(case: str) -> list[tuple[float, Tensor, Tensor, range]]:
    return [one_step(case, k, dtype) for k, dtype in VARIANTS]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_value_and_gradients_are_those_of_one_process(workers: Workers, world_size: int, case: str) -> None:
    found = workers.run(world_size, steps, case)
    for number, (k, dtype) in enumerate(VARIANTS):
        num_classes, _, inputs, labels = problem(case, world_size, dtype)
        loss, linear = softtriple(num_classes, k, dtype), encoder(dtype)
        expected, by_encoder = encode(linear, loss, inputs, labels)
        by_centers = loss.centers.grad
        assert by_centers is not None
        assert [label for of_rank in found for label in of_rank[number][3]] == list(range(num_classes))
        for of_rank in found:
            value, found_by_encoder, found_by_centers, classes = of_rank[number]
            assert value == pytest.approx(expected, rel=1e-10 if dtype is torch.float64 else 1e-5)
            assert_close(found_by_encoder, by_encoder)
            assert_close(found_by_centers, by_centers[classes.start : classes.stop], size=by_centers.abs().max())


def assert_close(found: Tensor, expected: Tensor, size: Tensor | None = None) -> None:
    """Equal within 1e-10 in float64 and 1e-5 in float32, of the largest number there is."""
    largest = expected.abs().max() if size is None else size
    tolerance = (1e-10 if expected.dtype is torch.float64 else 1e-5) * largest.item()
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def prefix_step() -> tuple[float, Tensor]:
    _, sizes, inputs, labels = problem("unequal parts", dist.world_size(), torch.float64)
    mine = slice(sum(sizes[: dist.rank()]), sum(sizes[: dist.rank() + 1]))
    torch.manual_seed(3)
    loss = shard(SoftTripleLoss(11, DIM, 2, prefixes=[1, 2]).double())
    value = loss(inputs[mine].requires_grad_(), labels[mine])
    value.backward()
    return value.item(), loss.centers.grad


@pytest.mark.parametrize("world_size", [2, 3])
def test_prefixes_over_ranks(workers: Workers, world_size: int) -> None:
    _, _, inputs, labels = problem("unequal parts", world_size, torch.float64)
    torch.manual_seed(3)
    loss = SoftTripleLoss(11, DIM, 2, prefixes=[1, 2]).double()
    value = loss(inputs, labels)
    value.backward()
    found = workers.run(world_size, prefix_step)
    assert [of_rank[0] for of_rank in found] == pytest.approx([value.item()] * world_size, rel=1e-10)
    assert_close(torch.cat([gradients for _, gradients in found]), loss.centers.grad)


def normalized_step() -> tuple[float, Tensor]:
    _, sizes, inputs, labels = problem("unequal parts", dist.world_size(), torch.float64)
    mine = slice(sum(sizes[: dist.rank()]), sum(sizes[: dist.rank() + 1]))
    torch.manual_seed(3)
    loss = shard(NormalizedSoftmaxLoss(11, DIM).double())
    value = loss(inputs[mine].requires_grad_(), labels[mine])
    value.backward()
    return value.item(), loss.centers.grad


def test_normalized_softmax_is_sharded_too(workers: Workers) -> None:
    _, _, inputs, labels = problem("unequal parts", 2, torch.float64)
    torch.manual_seed(3)
    loss = NormalizedSoftmaxLoss(11, DIM).double()
    value = loss(inputs, labels)
    value.backward()
    (first, upper), (second, lower) = workers.run(2, normalized_step)
    assert first == second == pytest.approx(value.item())
    torch.testing.assert_close(torch.cat([upper, lower]), loss.centers.grad)


def drawn_centers(num_classes: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(7)
    with torch.device("meta"):
        loss = SoftTripleLoss(num_classes, DIM, 2)
    return shard(loss).centers.detach(), torch.rand(3)


def test_centers_that_never_were_whole_are_those_of_one_process(workers: Workers) -> None:
    torch.manual_seed(7)
    whole, after = SoftTripleLoss(11, DIM, 2).centers.detach(), torch.rand(3)
    found = workers.run(3, drawn_centers, 11)
    assert torch.equal(torch.cat([centers for centers, _ in found]), whole)
    assert all(torch.equal(random, after) for _, random in found)


def crowd(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Seven examples of each of three classes: in pairs, some losses would have a tie to break."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(21, DIM, generator=random, dtype=torch.float64).to(dtype), torch.arange(21) % 3


def replicated_step(name: str, dtype: torch.dtype) -> tuple[float, Tensor, list[Tensor]]:
    inputs, labels = crowd(dtype)
    mine = (slice(0, 9), slice(9, 13), slice(13, 21))[dist.rank()]
    torch.manual_seed(0)
    loss = shard(build_loss(name, 11, DIM).to(dtype))
    linear = encoder(dtype)
    torch.manual_seed(1)
    model = dist.data_parallel(linear)
    value = loss(model(inputs[mine]), labels[mine])
    value.backward()
    return value.item(), gradient(linear), [p.grad for p in loss.parameters()]


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"softtriple", "softmax-norm"}))
def test_every_other_loss_is_computed_on_the_whole_batch(workers: Workers, name: str) -> None:
    inputs, labels = crowd(torch.float64)
    torch.manual_seed(0)
    loss, linear = build_loss(name, 11, DIM).double(), encoder(torch.float64)
    torch.manual_seed(1)
    expected, by_encoder = encode(linear, loss, inputs, labels)
    found = workers.run(3, replicated_step, name, torch.float64)
    for value, found_by_encoder, by_parameters in found:
        assert value == pytest.approx(expected, rel=1e-10)
        torch.testing.assert_close(found_by_encoder, by_encoder, rtol=1e-10, atol=1e-10)
        # To the last bit: nothing brings replicated parameters together again.
        assert all(torch.equal(a, b) for a, b in zip(by_parameters, found[0][2], strict=True))
        torch.testing.assert_close(by_parameters, [p.grad for p in loss.parameters()], rtol=1e-10, atol=1e-10)


def step_of_a_seed(seeds: list[int]) -> tuple[float, Tensor]:
    torch.manual_seed(seeds[dist.rank()])
    loss = shard(build_loss("proxy-nca", 3, DIM))
    inputs, labels = crowd(torch.float32)
    mine = dist.share(len(labels))
    return loss(inputs[mine], labels[mine]).item(), loss.centers.detach()


def test_replicated_losses_start_alike_whatever_the_seeds(workers: Workers) -> None:
    (expected,) = workers.run(1, step_of_a_seed, [4])
    for value, centers in workers.run(3, step_of_a_seed, [4, 5, 6]):
        assert value == pytest.approx(expected[0])
        assert torch.equal(centers, expected[1])


def distinct(num_classes: int) -> Tensor:
    return shard(softtriple(num_classes, 3, torch.float32)).distinct_centers(0.9)


def test_distinct_centers_of_all_classes(workers: Workers) -> None:
    expected = softtriple(7, 3, torch.float32).distinct_centers(0.9)
    assert all(torch.equal(found, expected) for found in workers.run(3, distinct, 7))


def started(num_classes: int) -> tuple[Tensor, int]:
    loss = shard(softtriple(num_classes, 3, torch.float64))
    inputs, labels = crowd(torch.float64)
    loss.initialize_centers(inputs, labels)
    return loss.shard.centers.detach(), len(loss.shard.classes)


def test_centers_start_from_data_as_in_one_process(workers: Workers) -> None:
    whole = softtriple(4, 3, torch.float64)
    whole.initialize_centers(*crowd(torch.float64))
    found = workers.run(3, started, 4)
    assert [count for _, count in found] == [2, 1, 1]
    torch.testing.assert_close(torch.cat([centers for centers, _ in found]), whole.centers.detach())


def numpy_step() -> list[float]:
    inputs, labels = crowd(torch.float32)
    mine = dist.share(len(labels))
    values = [
        shard(build_loss(name, 3, DIM))(inputs[mine].numpy(), labels[mine].numpy()) for name in ("softtriple", "lifted")
    ]
    return [value.item() for value in values]


def test_numpy_batches_are_gathered(workers: Workers) -> None:
    first, second = workers.run(2, numpy_step)
    assert first[1] == second[1] == pytest.approx(build_loss("lifted", 3, DIM)(*crowd(torch.float32)).item())


def test_double_backward_is_an_error() -> None:
    loss = ShardedSoftTripleLoss(softtriple(3, 2, torch.float32))
    embeddings = torch.randn(2, DIM, requires_grad=True)
    value = loss(embeddings, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="double backward"):
        torch.autograd.grad(value, embeddings, create_graph=True)


def test_in_one_process_nothing_is_wrapped() -> None:
    loss = softtriple(3, 2, torch.float32)
    assert shard(loss) is loss
