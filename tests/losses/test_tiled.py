"""The tiled objective: equal to the readable one, and at home in PyTorch (accumulation, double backward, autocast)."""

import copy
import gc
import io

import pytest
import torch
import torch.nn.functional as F
from tests.losses.problems import random_problem, with_centers
from torch import Tensor

from softtriple import SoftTripleLoss
from softtriple.losses import tiled
from softtriple.losses.functional import Settings, softtriple_objective
from softtriple.losses.tiled import RecycledMemory, tiled_objective

SETTINGS = Settings(scale=20.0, gamma=0.1, margin=0.05, tau=0.3)


def problem(
    batch: int = 6, num_classes: int = 11, k: int = 3, dim: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    return random_problem(batch + num_classes + k + dim, batch, num_classes, k, dim, dtype)


def fast(embeddings: Tensor, labels: Tensor, centers: Tensor, settings: Settings = SETTINGS) -> Tensor:
    return tiled_objective(embeddings, labels, centers, settings, RecycledMemory())


@pytest.mark.parametrize("tile_numbers", [1, 40, 1 << 17])
@pytest.mark.parametrize("small_bytes", [0, 1 << 26], ids=["recomputed", "kept"])
@pytest.mark.parametrize("batch", [1, 5, 40], ids=["fits the gradient", "fits too", "does not fit"])
@pytest.mark.parametrize("k", [1, 3])
def test_tiles_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tile_numbers: int, small_bytes: int, batch: int, k: int
) -> None:
    monkeypatch.setattr(tiled, "TILE_NUMBERS_CPU", tile_numbers)
    monkeypatch.setattr(tiled, "SMALL_BYTES", small_bytes)
    embeddings, labels, centers = problem(batch=batch, k=k)
    expected = softtriple_objective(embeddings, labels, centers, SETTINGS)
    found = fast(embeddings, labels, centers)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, (embeddings, centers)), torch.autograd.grad(expected, (embeddings, centers))
    )


def test_gradcheck_and_gradgradcheck() -> None:
    embeddings, labels, centers = problem(batch=3, num_classes=4, k=2, dim=4)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return fast(x, labels, w, Settings(scale=5.0, gamma=0.3, margin=0.05, tau=0.3))

    assert torch.autograd.gradcheck(function, (embeddings, centers))
    assert torch.autograd.gradgradcheck(function, (embeddings, centers))


@pytest.mark.parametrize("learned", ["embeddings", "centers"])
def test_gradient_of_one_input_alone(learned: str) -> None:
    embeddings, labels, centers = problem()
    expected = dict(
        zip(
            ("embeddings", "centers"),
            torch.autograd.grad(softtriple_objective(embeddings, labels, centers, SETTINGS), (embeddings, centers)),
            strict=True,
        )
    )
    frozen, kept = (centers, embeddings) if learned == "embeddings" else (embeddings, centers)
    frozen.requires_grad_(False)
    for create_graph in (False, True):
        (found,) = torch.autograd.grad(fast(embeddings, labels, centers), kept, create_graph=create_graph)
        torch.testing.assert_close(found, expected[learned])


def test_backward_twice_through_one_graph() -> None:
    embeddings, labels, centers = problem()
    value = fast(embeddings, labels, centers)
    first = torch.autograd.grad(value, (embeddings, centers), retain_graph=True)
    first = tuple(gradient.clone() for gradient in first)
    torch.testing.assert_close(torch.autograd.grad(value, (embeddings, centers)), first)


def test_gradient_is_scaled_by_the_upstream_gradient() -> None:
    embeddings, labels, centers = problem()
    single = torch.autograd.grad(fast(embeddings, labels, centers), (embeddings, centers))
    double = torch.autograd.grad(2.5 * fast(embeddings, labels, centers), (embeddings, centers))
    torch.testing.assert_close(double, tuple(2.5 * gradient for gradient in single))


def module(centers: Tensor) -> SoftTripleLoss:
    num_classes, k, dim = centers.shape
    return with_centers(SoftTripleLoss(num_classes, dim, k), centers)


def test_gradients_accumulate_and_kept_gradients_stay() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers)
    loss(embeddings, labels).backward()
    assert loss.centers.grad is not None
    held = loss.centers.grad
    value = held.clone()
    loss(embeddings, labels).backward()  # into the same .grad
    torch.testing.assert_close(held, 2 * value)
    loss.zero_grad(set_to_none=True)
    loss(embeddings, labels).backward()  # a new .grad, while `held` is still alive
    torch.testing.assert_close(held, 2 * value)
    torch.testing.assert_close(loss.centers.grad, value)


def test_a_view_of_an_old_gradient_keeps_its_memory() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers)
    loss(embeddings, labels).backward()
    assert loss.centers.grad is not None
    row = loss.centers.grad[3].numpy()
    before = row.copy()
    loss.zero_grad(set_to_none=True)
    loss(-embeddings, labels).backward()
    assert (row == before).all()


def test_only_dead_memory_is_reused() -> None:
    memory = RecycledMemory()
    like = torch.empty(5, 7, dtype=torch.float64)
    first = memory.empty_like(like)
    address = first.data_ptr()
    assert address % tiled.ALIGNMENT == 0
    second = memory.empty_like(like)
    assert second.data_ptr() != address
    address = second.data_ptr()
    del second
    gc.collect()
    assert memory.empty_like(like).data_ptr() == address
    assert memory.empty_like(torch.empty(3)).shape == (3,)


def test_two_uses_in_one_graph() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers)
    both = loss(embeddings, labels) + loss(embeddings.detach().flip(0), labels.flip(0)) * 3
    both.backward()
    together = loss.centers.grad
    loss.zero_grad(set_to_none=True)
    loss(embeddings, labels).backward()
    torch.testing.assert_close(together, 4 * loss.centers.grad)


def test_non_contiguous_input() -> None:
    embeddings, labels, centers = problem()
    expected = fast(embeddings, labels, centers)
    strided = embeddings.T.contiguous().T
    spread = centers.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not strided.is_contiguous()
    assert not spread.is_contiguous()
    found = fast(strided, labels, spread)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, (embeddings, centers)), torch.autograd.grad(expected, (embeddings, centers))
    )


def test_no_grad_gives_the_same_value_and_no_graph() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers)
    with torch.no_grad():
        value = loss(embeddings, labels)
    assert not value.requires_grad
    torch.testing.assert_close(value, loss(embeddings, labels).detach())
    with torch.inference_mode():
        torch.testing.assert_close(loss(embeddings, labels), value)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32_and_leaves_the_centers_alone(half: torch.dtype) -> None:
    embeddings, labels, centers = problem(dtype=torch.float32)
    loss = module(centers)
    rounded = embeddings.detach().to(half).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(rounded, labels)
    value.backward()
    assert value.dtype == loss.centers.dtype == loss.centers.grad.dtype == torch.float32
    assert rounded.grad is not None
    assert rounded.grad.dtype == half
    torch.testing.assert_close(value, loss(rounded.detach().float(), labels))


def test_float64_embeddings_are_not_rounded_to_the_centers() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers).float()
    assert loss(embeddings, labels).dtype == torch.float64
    assert loss.centers.dtype == torch.float32


def test_copies_and_state_dicts() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers)
    loss(embeddings, labels).backward()
    twin = copy.deepcopy(loss)
    torch.testing.assert_close(twin(embeddings, labels), loss(embeddings, labels))
    with torch.no_grad():
        twin.centers.add_(1.0)
    assert not torch.equal(twin.centers, loss.centers)

    file = io.BytesIO()
    torch.save(loss.state_dict(), file)
    file.seek(0)
    restored = module(torch.zeros_like(centers))
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert list(restored.state_dict()) == ["centers"]
    torch.testing.assert_close(restored(embeddings, labels), loss(embeddings, labels))


def test_moves_between_devices() -> None:
    embeddings, labels, centers = problem()
    on_meta = module(centers).to("meta")  # the one other device that every machine has
    assert on_meta.centers.device.type == "meta"
    back = on_meta.to_empty(device="cpu")
    with torch.no_grad():
        back.centers.copy_(centers)
    torch.testing.assert_close(back(embeddings, labels), module(centers)(embeddings, labels))


def test_torch_func_of_the_readable_form_gives_the_same_gradient() -> None:
    embeddings, labels, centers = problem()
    loss = module(centers)

    def value(x: Tensor) -> Tensor:
        return softtriple_objective(x, labels, centers, Settings(20.0, 0.1, 0.01, 0.2))

    expected = torch.func.grad(value)(embeddings.detach())
    (found,) = torch.autograd.grad(loss(embeddings, labels), embeddings)
    torch.testing.assert_close(found, expected)


def test_large_scale_and_tiny_gamma_stay_finite() -> None:
    embeddings, labels, centers = problem(dtype=torch.float32)
    extreme = Settings(scale=5000.0, gamma=1e-4, margin=0.4, tau=1.0)
    found = fast(embeddings, labels, centers, extreme)
    gradients = torch.autograd.grad(found, (embeddings, centers))
    assert found.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(found, softtriple_objective(embeddings, labels, centers, extreme))


def test_gradient_is_orthogonal_to_what_is_normalised() -> None:
    embeddings, labels, centers = problem()
    by_embeddings, by_centers = torch.autograd.grad(fast(embeddings, labels, centers), (embeddings, centers))
    along = F.cosine_similarity(by_centers.flatten(0, 1), centers.flatten(0, 1), dim=-1)
    assert (by_embeddings * embeddings).sum(-1).abs().max() < 1e-12
    assert along.abs().max() < 1e-9


@pytest.mark.usefixtures("unchecked")  # the compiler cannot look into the annotation checks of the tests
def test_compiled_loss_has_the_same_value() -> None:
    embeddings, labels, centers = problem()
    loss = SoftTripleLoss(*centers.shape[::2], centers.shape[1], validate=False).double()
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(embeddings, labels), loss(embeddings, labels))
