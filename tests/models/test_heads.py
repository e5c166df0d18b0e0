"""Where heads start, against scikit-learn and plain loops."""

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from softtriple.errors import UserError
from softtriple.models.heads import pca_head, whitened_head, within_class_covariance


def draw(items: int = 40, width: int = 5, classes: int = 4) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(items) % classes
    centers = 3 * torch.randn(classes, width, generator=random, dtype=torch.float64)
    noise = torch.randn(items, width, generator=random, dtype=torch.float64) * torch.linspace(0.2, 3, width)
    return centers[labels] + noise, labels


def test_pca_is_scikit_learns() -> None:
    features, _ = draw()
    weight, bias = pca_head(features.float(), 3)
    assert weight.dtype == bias.dtype == torch.float64
    expected = torch.from_numpy(PCA(3).fit_transform(features.float().double().numpy()))
    projected = features.float().double() @ weight.T + bias
    torch.testing.assert_close(projected.abs(), expected.abs())
    torch.testing.assert_close(weight @ weight.T, torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize(("items", "width"), [(3, 6), (9, 2)])
def test_pca_needs_enough_items_and_features(items: int, width: int) -> None:
    with pytest.raises(UserError, match=f"dim = 3 .* {items} and {width}"):
        pca_head(torch.rand(items, width), 3)


def covariance_by_loops(features: Tensor, labels: Tensor) -> Tensor:
    width = features.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64)
    for label in sorted(set(labels.tolist())):
        members = [row for row, other in zip(features, labels.tolist(), strict=True) if other == label]
        mean = sum(members) / len(members)
        for row in members:
            for i in range(width):
                for j in range(width):
                    total[i, j] += (row[i] - mean[i]) * (row[j] - mean[j])
    return total / len(features)


def test_within_class_covariance_by_loops() -> None:
    features, labels = draw(items=14)
    labels = labels * 7 - 3  # any integers
    torch.testing.assert_close(within_class_covariance(features, labels), covariance_by_loops(features, labels))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_whitening_by_definition(power: float, shrinkage: float) -> None:
    features, labels = draw()
    s = covariance_by_loops(features, labels)
    s = (1 - shrinkage) * s + shrinkage * torch.linalg.eigvalsh(s).mean() * torch.eye(5, dtype=torch.float64)
    whitening = torch.zeros(5, 5, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(s)
    for value, vector in zip(values, vectors.T, strict=True):
        whitening += value ** (-power / 2) * torch.outer(vector, vector)
    expected = torch.from_numpy(PCA(3).fit_transform((features @ whitening).numpy()))
    weight, bias = whitened_head(features, labels, 3, power=power, shrinkage=shrinkage)
    torch.testing.assert_close((features @ weight.T + bias).abs(), expected.abs())


def test_full_whitening_equalises_the_variance_within_classes() -> None:
    features, labels = draw()
    weight, bias = whitened_head(features, labels, 5, power=1.0, shrinkage=0.0)
    torch.testing.assert_close(
        within_class_covariance(features @ weight.T + bias, labels), torch.eye(5, dtype=torch.float64)
    )


def test_power_zero_is_pca() -> None:
    features, labels = draw()
    for ours, pca in zip(whitened_head(features, labels, 3, power=0.0), pca_head(features, 3), strict=True):
        assert torch.equal(ours, pca)


def test_one_item_per_class_is_pca() -> None:
    features, _ = draw(items=9)
    for ours, pca in zip(whitened_head(features, torch.arange(9), 3), pca_head(features, 3), strict=True):
        assert torch.equal(ours, pca)


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
@pytest.mark.parametrize("case", ["constant feature", "fewer items than features", "all the same"])
def test_singular_covariances_give_finite_heads(case: str, shrinkage: float) -> None:
    features, labels = draw(items=6, width=9) if case == "fewer items than features" else draw()
    if case == "constant feature":
        features[:, 2] = 7
    if case == "all the same":
        features = torch.full_like(features, 7)
    weight, bias = whitened_head(features, labels, 3, power=1.0, shrinkage=shrinkage)
    assert weight.isfinite().all()
    assert bias.isfinite().all()
    if case != "all the same":
        assert torch.linalg.matrix_rank(features @ weight.T + bias) == 3


@pytest.mark.parametrize("options", [{"power": -1.0}, {"shrinkage": 1.5}, {"shrinkage": -0.1}, {"power": float("nan")}])
def test_settings_out_of_range_are_named(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} = "):
        whitened_head(*draw(), 3, **options)
