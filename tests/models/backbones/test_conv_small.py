import pytest
import torch

from softtriple.models.backbones.conv_small import conv_small


@pytest.mark.parametrize(("size", "side"), [(16, 1), (28, 1), (32, 2), (64, 4)])
def test_four_halvings(size: int, side: int) -> None:
    network = conv_small(input_size=size, width=8).eval()
    assert network.preprocess is not None
    assert network.preprocess.size == network.preprocess.resize == size
    assert network(torch.zeros(1, 1, size, size)).shape == (1, 16, side, side)


@pytest.mark.parametrize("options", [{"input_size": 15}, {"width": 0}, {"width": 7}])
def test_mistakes_are_named(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"conv-small: {next(iter(options))} = "):
        conv_small(**options)


def test_learns_to_tell_bars() -> None:
    """A few steps separate upright from lying bars at random places: the network does learn from scratch."""
    torch.manual_seed(0)
    labels = torch.arange(32) % 2
    images = torch.zeros(32, 1, 32, 32)
    for image, label, place in zip(images, labels, torch.randint(2, 29, (32,)), strict=True):
        bar = image[0] if label else image[0].T
        bar[place : place + 2] = 1
    network, classifier = conv_small(width=8), torch.nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*network.parameters(), *classifier.parameters()], lr=1e-2)
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(classifier(network(images).mean(dim=(2, 3))), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
