import pytest
import torch

from softtriple.models.backbones.vectors import linear, mlp


def test_linear_is_the_identity() -> None:
    vectors = torch.rand(3, 5)
    network = linear(5)
    assert network(vectors) is vectors
    assert network.num_features == 5
    assert network.stage_names == ()


@pytest.mark.parametrize("hidden", [(7,), (7, 6), (7, 6, 4, 3)])
def test_mlp_has_a_stage_for_each_size(hidden: tuple[int, ...]) -> None:
    network = mlp(5, hidden)
    assert len(network.stage_names) == len(hidden)
    assert network(torch.rand(2, 5)).shape == (2, hidden[-1])


def test_mlp_treats_every_row_by_itself() -> None:
    rows = torch.rand(6, 5, dtype=torch.float64)
    network = mlp(5, (16, 8)).double().train()
    torch.testing.assert_close(network(rows)[:2], network(rows[:2]))


def test_ten_layers_keep_their_parameters_apart() -> None:
    """Stage "layer1" must not own what belongs to "layer10"."""
    network = mlp(2, (2,) * 11)
    assert [len(network.stage_modules(index)) for index in range(11)] == [1] * 11


@pytest.mark.parametrize("hidden", [(), (4, 0)])
def test_mlp_needs_positive_sizes(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"mlp: .* must be positive sizes"):
        mlp(5, hidden)


def test_linear_needs_a_positive_size() -> None:
    with pytest.raises(ValueError, match="in_features = 0 must be positive"):
        linear(0)
