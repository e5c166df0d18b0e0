"""BN-Inception against numbers of a public implementation, and its weight file.

The numbers are the pooled features (float64, evaluation mode) of the network of ``bn_inception-52deb4733.pth`` with
weights and input filled by the formulas below, so the architecture is proved without the file.
"""

import hashlib
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from softtriple.models.backbones.bn_inception import BNInception, load_bn_inception_weights

# SHA-256 of the 483 sorted lines "name 64x3x7x7" of the public file, its classifier left out.
NAMES_AND_SHAPES = "da8526d23b755f8a7d85ff68544f6c38e704c3e04fe596ba945c06c2fb55d184"

# Every 23rd of the 1024 features, and two sums over all of them.
FEATURES = [
    *[0.09121279639688129, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.03028386003608768, 0.14130967046626997],
    *[0.17283844205153692, 0.23808060294637368, 0.16491796006288434, 0.060538037042742805, 0.0, 0.0, 0.0],
    *[0.0012565328027383154, 0.027272262089179482, 0.0, 0.027514743466098935, 2.0687135862508015e-05],
    *[0.016197809038683002, 0.0017006885702894217, 0.002307463008597339, 0.020672582928909576, 0.0],
    *[0.04652998418129316, 0.0, 0.009191240095785138, 0.022280868117519725, 0.01335524058728195, 0.0],
    *[0.0012727899549732416, 0.007746459006332617, 0.0, 0.0028571799460979652, 0.005744726610931646, 0.0],
    *[0.004694300210438259, 0.16738815597519088, 0.030102360308823146, 0.0, 0.0, 0.0, 0.0],
]
SUM, SUM_OF_SQUARES = 38.40012353269997, 5.910040215967805


def filled(number: int, name: str, tensor: Tensor) -> Tensor:
    """Tensor ``number`` of the state dict, filled by formula in float32."""
    if name.endswith("num_batches_tracked"):
        return tensor
    wave = torch.sin(0.37 * torch.arange(tensor.numel(), dtype=torch.float64) + 0.11 * number)
    if tensor.ndim == 4:
        wave = wave * math.sqrt(2 / tensor[0].numel()) * 1.4
    elif name.endswith("running_var"):
        wave = 1 + 0.1 * wave.abs()
    elif name.endswith("weight"):
        wave = 1 + 0.1 * wave
    else:
        wave = 0.01 * wave
    return wave.float().view(tensor.shape)


@pytest.fixture(scope="module")
def network() -> BNInception:
    network = BNInception().eval()
    state = network.state_dict()
    network.load_state_dict({n: filled(number, n, state[n]) for number, n in enumerate(state)})
    return network


def test_names_and_shapes_are_those_of_the_public_file(network: BNInception) -> None:
    lines = sorted(f"{name} {'x'.join(map(str, t.shape))}" for name, t in network.state_dict().items())
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == NAMES_AND_SHAPES


def test_features_are_those_of_the_public_implementation(network: BNInception) -> None:
    images = 50 * torch.sin(0.01 * torch.arange(3 * 224 * 224, dtype=torch.float64)).view(1, 3, 224, 224)
    twin = BNInception().double().eval()
    twin.load_state_dict(network.state_dict())
    with torch.inference_mode():
        features = twin(images).mean(dim=(2, 3))[0]
    assert features.shape == (1024,)
    assert features[::23].tolist() == pytest.approx(FEATURES, abs=1e-9)
    assert features.sum().item() == pytest.approx(SUM, rel=1e-9)
    assert features.square().sum().item() == pytest.approx(SUM_OF_SQUARES, rel=1e-9)


def test_weight_file_comes_back_without_its_classifier(network: BNInception, tmp_path: Path) -> None:
    classifier = {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    # The public file is older than PyTorch's zip format.
    torch.save(network.state_dict() | classifier, tmp_path / "weights.pth", _use_new_zipfile_serialization=False)
    twin = BNInception()
    load_bn_inception_weights(twin, str(tmp_path / "weights.pth"))
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name]), name


def test_other_content_under_the_public_name_is_refused(network: BNInception, tmp_path: Path) -> None:
    path = tmp_path / "bn_inception-52deb4733.pth"
    torch.save(network.state_dict(), path)
    with pytest.raises(ValueError, match=r"SHA-256 begins with [0-9a-f]{9}, expected 52deb4733"):
        load_bn_inception_weights(BNInception(), str(path))
