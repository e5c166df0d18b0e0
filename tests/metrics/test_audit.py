import torch

from softtriple.data.inspection import Inspection
from softtriple.metrics.audit import audit_items, find_outliers, mode_separation


def drawn(*centers: list[float], size: int = 30, noise: float = 0.3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.tensor(center) + noise * torch.randn(size, 6, generator=generator) for center in centers])


AXES = [[4.0 if axis == place else 0.0 for axis in range(6)] for place in range(6)]


def seen(count: int) -> Inspection:
    return Inspection(tuple(str(row).encode() for row in range(count)), None, {}, {0: "odd"})


def test_findings() -> None:
    # Class 10 has two modes, 20 and 30 are one, 40 is fine, 50 has two items.
    features = drawn(AXES[0], AXES[1], AXES[2], AXES[2], AXES[3])
    features = torch.cat([features, drawn(AXES[4], size=2)])
    labels = torch.tensor([10] * 60 + [20] * 30 + [30] * 30 + [40] * 30 + [50] * 2)
    labels[125] = 10
    found = audit_items(features, labels, seen(len(labels)))
    assert found.suspects[0].row == 125
    assert (found.suspects[0].given, found.suspects[0].suggested) == (10, 40)
    kinds = {(issue.kind, issue.classes) for issue in found.classes}
    assert ("few", (50,)) in kinds
    assert ("split", (10,)) in kinds
    assert ("merge", (20, 30)) in kinds
    assert not any(40 in issue.classes for issue in found.classes)
    assert found.odd == {0: "odd"}


def test_one_mode_is_not_two() -> None:
    generator = torch.Generator().manual_seed(0)
    one = torch.nn.functional.normalize(torch.ones(8) + 0.3 * torch.randn(60, 8, generator=generator), dim=1)
    assert mode_separation(one) < 0.72
    assert mode_separation(torch.cat([one[:30], -one[30:]])) > 0.9


def test_outliers_are_far_below_the_others() -> None:
    closeness = torch.linspace(0.6, 0.8, 100)
    closeness[7], closeness[3] = -0.5, 0.1
    assert [outlier.row for outlier in find_outliers(closeness)] == [7, 3]
