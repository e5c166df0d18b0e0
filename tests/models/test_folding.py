"""Folded batch norms compute what the network computes, from the same parameters."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from softtriple.models import Encoder, folding
from softtriple.models.folding import FastConvolution, fast_view, find_pairs, folded_weights

# Each with the number of batch norms that do not follow a convolution.
NETWORKS = {
    "efficientnet-lite0": 0,
    "bn-inception": 0,
    "conv-small": 0,
    "timm:test_byobnet": 0,
    "timm:test_convnext": 0,
    "timm:test_efficientnet": 0,
    "timm:test_resnet": 0,
    "timm:test_vit": 0,
    "timm:mobilenetv3_small_050": 0,
    "timm:resnetv2_18": 9,
}


@pytest.fixture(autouse=True)
def _fold_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FEWEST_PLACES", 0)


def randomized(module: nn.Module) -> None:
    """Statistics as of a trained network, and weights that keep the size of what passes through them."""
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            for tensor, low, high in ((part.running_mean, -0.3, 0.3), (part.running_var, 0.5, 1.5)):
                nn.init.uniform_(tensor, low, high)  # type: ignore[arg-type]
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.3, 0.3)
        elif isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)


def encoder_of(name: str, **options: object) -> Encoder:
    encoder = Encoder.from_backbone(name, dim=8, pretrained=False, **options)
    randomized(encoder.backbone)
    return encoder.eval()


def norms_of(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_gives_the_same_features_from_the_same_parameters(name: str) -> None:
    encoder = encoder_of(name, **({} if name == "conv-small" else {"input_size": 64}))
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    fast = encoder.fast()
    inputs = torch.randn_like(encoder.example(2))
    with torch.no_grad():
        features, folded = encoder.features(inputs), fast.features(inputs)
    torch.testing.assert_close(folded, features, rtol=1e-5, atol=1e-5 * float(features.abs().max()))
    pairs = [part for part in fast.modules() if isinstance(part, FastConvolution) and part.norm is not None]
    assert len(pairs) == len(norms_of(encoder)) - NETWORKS[name]
    assert {id(parameter) for parameter in fast.parameters()} == {id(parameter) for parameter in encoder.parameters()}
    assert encoder.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


@pytest.mark.parametrize("bias", [False, True])
def test_weights_are_folded_as_torch_does(bias: bool) -> None:
    conv, norm = nn.Conv2d(4, 6, 3, groups=2, bias=bias).eval(), nn.BatchNorm2d(6).eval()
    randomized(norm)
    fused = fuse_conv_bn_eval(conv, norm)
    weight, shift = folded_weights(conv, norm)
    torch.testing.assert_close(weight, fused.weight)
    torch.testing.assert_close(shift, fused.bias)


def test_frozen_statistics_train_with_the_same_gradients() -> None:
    encoder = encoder_of("efficientnet-lite0", input_size=32)
    encoder.freeze_batch_norm("statistics")
    encoder.train()
    inputs, direction = torch.randn_like(encoder.example(4)), torch.randn(4, 8)
    gradients = []
    for network in (encoder, encoder.fast()):
        (network(inputs) * direction).sum().backward()
        gradients.append([parameter.grad for parameter in encoder.parameters()])
        encoder.zero_grad(set_to_none=True)
    for plain, folded in zip(*gradients, strict=True):
        torch.testing.assert_close(folded, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))


def test_batch_statistics_are_not_folded() -> None:
    encoder = encoder_of("conv-small").train()
    other = copy.deepcopy(encoder)
    inputs = torch.randn_like(encoder.example(4))
    torch.testing.assert_close(encoder.fast()(inputs), other(inputs))
    for one, two in zip(encoder.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, two)
    fast = encoder.fast().eval()  # evaluation then folds the new statistics
    torch.testing.assert_close(fast(inputs), other.eval()(inputs))


def test_a_fast_encoder_follows_its_parameters_and_its_mode() -> None:
    encoder = encoder_of("conv-small")
    fast = encoder.fast()
    inputs = torch.randn_like(encoder.example(2))
    with torch.no_grad():
        for tensor in encoder.state_dict().values():
            tensor.copy_(tensor * 2)
        torch.testing.assert_close(fast(inputs), encoder(inputs))
    encoder.set_trainable("last:1")
    trained = encoder.fast().train()
    assert [norm.training for norm in norms_of(trained)] == [False, False, False, True]


class Tangled(nn.Module):
    """Convolutions whose output, or whose norm, is used more than once; only the last pair can be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.shared, self.single = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(x)
        x = self.norms[0](x) + x
        x = self.norms[1](self.shared(self.norms[1](self.shared(x))))
        return self.norms[2](self.single(x)).relu_()  # type: ignore[no-any-return]


def test_what_is_used_elsewhere_is_not_folded() -> None:
    network = Tangled().eval()
    randomized(network)
    inputs = torch.randn(2, 3, 4, 4)
    pairs = find_pairs(network, inputs)
    assert pairs == (("single", "norms.2"),)
    torch.testing.assert_close(fast_view(network, pairs)(inputs), network(inputs))


@pytest.mark.parametrize(
    ("kernel", "stride", "groups", "wide"), [(3, 2, 4, True), (5, 1, 4, True), (3, 1, 4, False), (5, 1, 2, False)]
)
def test_large_and_strided_depthwise_convolutions_compute_in_float32_under_autocast(
    kernel: int, stride: int, groups: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = nn.Conv2d(4, 4, kernel, stride, groups=groups)
    types = []
    plain = torch.nn.functional.conv2d

    def conv2d(inputs: Tensor, *arguments: object) -> Tensor:
        types.append((inputs.dtype, torch.is_autocast_enabled("cpu")))
        return plain(inputs, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    inputs = torch.randn(2, 4, 8, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = FastConvolution(conv, None)(inputs)
    assert types == [(torch.float32, False) if wide else (torch.bfloat16, True)]
    assert output.dtype is torch.bfloat16
    torch.testing.assert_close(output.float(), conv(inputs.float()), rtol=0.02, atol=0.02)


def test_a_users_own_module_and_other_inputs_stay_as_they_are() -> None:
    own = Encoder.from_module(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), dim=2)
    assert own.fast() is own
    vectors = Encoder.from_backbone("linear", dim=2, in_features=3)
    assert vectors.fast() is vectors


def test_embeddings_of_many_images_are_those_of_each() -> None:
    encoder = encoder_of("conv-small")
    images = list(torch.randint(0, 256, (20, 32, 32, 3), dtype=torch.uint8).numpy())
    together = torch.from_numpy(encoder.embed(images))
    torch.testing.assert_close(together, torch.cat([torch.from_numpy(encoder.embed([image])) for image in images]))


def test_images_can_be_embedded_in_inference_mode() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    encoder = Encoder.from_backbone("conv-small", dim=4)
    with torch.inference_mode():
        inside = encoder.embed(list(images))
    np.testing.assert_array_equal(inside, encoder.embed(list(images)))


def test_feature_maps_stay_channels_last() -> None:
    fast = encoder_of("efficientnet-lite0", input_size=64).fast()
    formats = []
    for part in fast.modules():
        if isinstance(part, FastConvolution):
            part.register_forward_hook(
                lambda _, __, output: formats.append(output.is_contiguous(memory_format=torch.channels_last))
            )
    fast(fast.example(2))
    assert len(formats) == 49
    assert all(formats)


@pytest.mark.parametrize(("batch", "folded"), [(1, False), (2, True)])
def test_weights_are_folded_if_maps_have_more_places(batch: int, folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "FEWEST_PLACES", 2)
    conv, norm = nn.Conv2d(4, 6, 1, stride=2).eval(), nn.BatchNorm2d(6).eval()
    calls = []
    norm.register_forward_hook(lambda *_: calls.append(1))
    inputs = torch.randn(batch, 4, 4, 4)  # 4 places each, and 4 weights for each channel
    output = FastConvolution(conv, norm)(inputs)
    assert calls == [] if folded else [1]
    torch.testing.assert_close(output, norm(conv(inputs)))
