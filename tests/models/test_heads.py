"""Where heads start, against scikit-learn and plain loops."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from torch import Tensor

from softtriple.errors import UserError
from softtriple.models import heads
from softtriple.models.heads import Start, closed_form_head, pca_head, within_class_spread


def draw(items: int = 40, width: int = 5, classes: int = 4) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(items) % classes
    centers = 3 * torch.randn(classes, width, generator=random, dtype=torch.float64)
    noise = torch.randn(items, width, generator=random, dtype=torch.float64) * torch.linspace(0.2, 3, width)
    return centers[labels] + noise + 1, labels


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


def whitened_by_definition(features: Tensor, labels: Tensor, power: float, shrinkage: float) -> Tensor:
    s = covariance_by_loops(features, labels)
    identity = torch.eye(len(s), dtype=torch.float64)
    values, vectors = torch.linalg.eigh((1 - shrinkage) * s + shrinkage * s.trace() / len(s) * identity)
    whitening = torch.zeros_like(s)
    for value, vector in zip(values, vectors.T, strict=True):
        whitening += value ** (-power / 2) * torch.outer(vector, vector)
    return features @ whitening


def assert_proportional(ours: Tensor, expected: Tensor) -> None:
    """Equal up to one positive factor and the signs of the columns, which no retrieval depends on."""
    ours, expected = ours.abs() / ours.norm(), expected.abs() / expected.norm()
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)


def test_pca_is_scikit_learns() -> None:
    features, _ = draw()
    weight, bias = pca_head(features.float(), 3)
    assert weight.dtype == bias.dtype == torch.float64
    expected = torch.from_numpy(PCA(3).fit_transform(features.float().double().numpy()))
    projected = features.float().double() @ weight.T + bias
    torch.testing.assert_close(projected.abs(), expected.abs())
    torch.testing.assert_close(weight @ weight.T, torch.eye(3, dtype=torch.float64))


def test_eigenvectors_of_large_matrices_are_accurate_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = draw()
    features = 1e-3 * features
    expected = [pca_head(features, 3), closed_form_head(features, labels, 3, Start())]
    monkeypatch.setattr(heads, "_MOST_DOUBLE", 4)
    for one, other in zip(
        [pca_head(features, 3), closed_form_head(features, labels, 3, Start())], expected, strict=True
    ):
        assert one[0].dtype == torch.float64
        torch.testing.assert_close((features @ one[0].T).abs(), (features @ other[0].T).abs(), rtol=1e-3, atol=1e-5)


def test_too_few_features_are_counted() -> None:
    for call in (pca_head, lambda rows, dim: closed_form_head(rows, torch.zeros(9).long(), dim, Start())):
        with pytest.raises(UserError, match=r"dim = 3 .* 2"):
            call(torch.rand(9, 2), 3)


def test_fewer_items_than_dimensions_keep_their_components_and_add_perpendicular_ones() -> None:
    features = torch.rand(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, _ = pca_head(features, 6)
    torch.testing.assert_close(weight @ weight.T, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(weight[:3].abs(), pca_head(features, 3)[0].abs())
    torch.testing.assert_close((features - features.mean(dim=0)) @ weight[3:].T, torch.zeros(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("items", [1, 4])
def test_a_head_of_the_whole_width_keeps_all_distances(items: int) -> None:
    weight, bias = closed_form_head(torch.rand(items, 5), torch.zeros(items).long(), 5, Start(0.0, 0.0))
    others = torch.rand(7, 5, dtype=torch.float64)
    ratio = torch.pdist(others @ weight.T + bias) / torch.pdist(others)
    torch.testing.assert_close(ratio, ratio[0].expand_as(ratio))


def test_within_class_spread_by_loops() -> None:
    features, labels = draw(items=14)
    labels = labels * 7 - 3  # any integers
    spread = within_class_spread(features, labels)
    covariance = spread.directions * spread.variances @ spread.directions.T
    torch.testing.assert_close(covariance, covariance_by_loops(features, labels))


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_whitening_by_definition(power: float, shrinkage: float) -> None:
    features, labels = draw()
    expected = PCA(3).fit_transform(whitened_by_definition(features, labels, power, shrinkage).numpy())
    weight, bias = closed_form_head(features, labels, 3, Start(power, shrinkage, center=1.0))
    assert_proportional(features @ weight.T + bias, torch.from_numpy(expected))


def test_full_whitening_equalises_the_variance_within_classes() -> None:
    features, labels = draw()
    weight, bias = closed_form_head(features, labels, 5, Start(1.0, 0.0))
    covariance = covariance_by_loops(features @ weight.T + bias, labels)
    torch.testing.assert_close(covariance, covariance[0, 0] * torch.eye(5, dtype=torch.float64))


def test_power_zero_is_pca_up_to_scale() -> None:
    features, labels = draw()
    head = closed_form_head(features, labels, 3, Start(0.0, 0.0, center=1.0))
    for ours, pca in zip(head, pca_head(features, 3), strict=True):
        assert_proportional(ours, pca)


def test_one_item_per_class_is_pca_up_to_scale() -> None:
    features, _ = draw(items=9)
    head = closed_form_head(features, torch.arange(9), 3, Start(center=1.0))
    for ours, pca in zip(head, pca_head(features, 3), strict=True):
        assert_proportional(ours, pca)


@pytest.mark.parametrize("start", [Start(), Start(0.0, 0.0), Start(1.0, 0.1, center=0.0), Start(standardize=True)])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_the_weight_has_the_size_of_a_random_one(start: Start, factor: float) -> None:
    features, labels = draw()
    weight, _ = closed_form_head(factor * features, labels, 3, start)
    assert weight.square().mean().sqrt().item() == pytest.approx(5**-0.5)


@pytest.mark.parametrize("start", [Start(), Start(1.0, 0.1), Start(0.0, 0.0), Start(0.5, 0.1, standardize=True)])
@pytest.mark.parametrize("center", [0.0, 0.25, 0.5, 1.0])
def test_a_share_of_the_mean_is_subtracted(start: Start, center: float) -> None:
    features, labels = draw()
    features = features + 3
    weight, bias = closed_form_head(features, labels, 3, start._replace(center=center))
    torch.testing.assert_close((features @ weight.T + bias).mean(dim=0), (1 - center) * features.mean(dim=0) @ weight.T)


def test_standardized_columns_may_have_any_units() -> None:
    features, labels = draw()
    units = torch.tensor([1.0, 1e3, 1e-3, 7.0, 0.2], dtype=torch.float64)
    start = Start(0.5, 0.3, center=1.0, standardize=True)
    expected = PCA(3).fit_transform(
        whitened_by_definition((features - features.mean(dim=0)) / features.std(dim=0), labels, 0.5, 0.3).numpy()
    )
    for rows in (features, features * units):
        weight, bias = closed_form_head(rows, labels, 3, start)
        assert_proportional(rows @ weight.T + bias, torch.from_numpy(expected))


def test_a_constant_column_is_not_divided_by_zero() -> None:
    features, labels = draw()
    features[:, 2] = 7
    weight, bias = closed_form_head(features, labels, 3, Start(standardize=True))
    assert weight.isfinite().all()
    assert bias.isfinite().all()


def test_an_uncentred_head_of_the_whole_width_keeps_cosines() -> None:
    features, labels = draw()
    weight, bias = closed_form_head(features, labels, 5, Start(0.0, 0.0, center=0.0))
    assert not bias.any()
    before, after = F.normalize(features, dim=1), F.normalize(features @ weight.T + bias, dim=1)
    torch.testing.assert_close(after @ after.T, before @ before.T)


@pytest.mark.parametrize("shrinkage", [0.0, 0.1])
@pytest.mark.parametrize("case", ["constant feature", "fewer items than features"])
def test_singular_covariances_give_finite_heads(case: str, shrinkage: float) -> None:
    features, labels = draw(items=6, width=9) if case == "fewer items than features" else draw()
    if case == "constant feature":
        features[:, 2] = 7
    weight, bias = closed_form_head(features, labels, 3, Start(1.0, shrinkage))
    assert weight.isfinite().all()
    assert bias.isfinite().all()
    assert torch.linalg.matrix_rank(features @ weight.T + bias) == 3


@pytest.mark.parametrize("standardize", [False, True])
def test_items_that_are_all_the_same_give_a_finite_head(standardize: bool) -> None:
    weight, bias = closed_form_head(
        torch.full((9, 5), 7.0), torch.arange(9) % 3, 3, Start(1.0, standardize=standardize)
    )
    assert weight.isfinite().all()
    assert bias.isfinite().all()


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (Start(power=-1.0), "head_power = -1.0"),
        (Start(power=float("nan")), "head_power = nan"),
        (Start(shrinkage=1.5), "head_shrinkage = 1.5"),
        (Start(shrinkage=-0.1), "head_shrinkage = -0.1"),
        (Start(center=1.5), "head_center = 1.5"),
        (Start(center=-0.5), "head_center = -0.5"),
    ],
)
def test_settings_out_of_range_are_named(start: Start, named: str) -> None:
    with pytest.raises(UserError, match=named):
        closed_form_head(*draw(), 3, start)
