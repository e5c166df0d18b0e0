"""Paired differences against samples drawn one by one, and the table that shows them."""

import numpy as np
import pytest

from softtriple.errors import UserError
from softtriple.metrics import Report, difference_intervals, format_comparison


def report(sizes, recall, precision, **more) -> Report:
    per_class = {
        f"class {place}": {"queries": int(size), "recall_at_1": float(r), "map_at_r": float(m)}
        for place, (size, r, m) in enumerate(zip(sizes, recall, precision, strict=True))
    }
    means = [float(np.average(column, weights=sizes)) for column in (recall, precision)]
    total = int(sum(sizes))
    return Report(
        recall={1: means[0]},
        precision_at_1=means[0],
        r_precision=0.5,
        map_at_r=means[1],
        num_queries=total,
        num_gallery=total,
        num_classes=len(sizes),
        per_class=per_class,
        **more,
    )


def pair(num_classes=30, gain=0.1, seed=0):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, size=num_classes)
    before = random.random((2, num_classes)) * 0.5
    after = before + gain + 0.02 * random.normal(size=before.shape)
    return sizes, before, after


def test_intervals_are_those_of_classes_drawn_one_by_one():
    sizes, before, after = pair()
    random, means = np.random.default_rng(4), []
    for _ in range(300):
        drawn = random.integers(30, size=30)
        means.append(((after - before) * sizes)[:, drawn].sum(axis=1) / sizes[drawn].sum())
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    found = difference_intervals(report(sizes, *before), report(sizes, *after), resamples=300, seed=4)
    assert list(found) == ["recall@1", "map_at_r"]
    for place, difference in enumerate(found.values()):
        assert difference.mean == pytest.approx(np.average((after - before)[place], weights=sizes))
        assert (difference.low, difference.high) == pytest.approx((low[place], high[place]))


def test_pairing_sees_a_gain_that_separate_intervals_hide():
    sizes, before, after = pair(gain=0.03)
    found = difference_intervals(report(sizes, *before), report(sizes, *after))["recall@1"]
    assert 0 < found.low < found.mean < found.high < 0.06


def test_order_of_classes_does_not_matter_and_the_sign_turns():
    sizes, before, after = pair()
    a, b = report(sizes, *before), report(sizes, *after)
    shuffled = Report.from_json(b.to_json())
    object.__setattr__(shuffled, "per_class", dict(reversed(b.per_class.items())))
    assert difference_intervals(a, shuffled) == difference_intervals(a, b)
    forth, back = difference_intervals(a, b)["map_at_r"], difference_intervals(b, a)["map_at_r"]
    assert (back.mean, back.low, back.high) == pytest.approx((-forth.mean, -forth.high, -forth.low))


def test_reports_of_other_classes_or_queries_are_refused():
    sizes, before, _ = pair(4)
    whole = report(sizes, *before)
    with pytest.raises(UserError, match="'class 3'"):
        difference_intervals(whole, report(sizes[:3], *before[:, :3]))
    with pytest.raises(UserError, match=f"'class 0' has {sizes[0]} in one and {sizes[0] + 1}"):
        difference_intervals(whole, report(sizes + 1, *before))
    with pytest.raises(UserError, match="no results per class"):
        difference_intervals(whole, report([1], [0.5], [0.5]).__class__(**{**vars(whole), "per_class": {}}))


def test_table():
    a = report([2, 2], [0.5, 0.5], [0.25, 0.25], nmi=0.5)
    b = report([2, 2], [0.75, 0.75], [0.5, 0.5])
    assert format_comparison({"baseline": a, "trained": b}).splitlines() == [
        "             baseline  trained  difference",
        "Recall@1        50.00    75.00  +25.00  (+25.00 to +25.00)",
        "Precision@1     50.00    75.00  +25.00",
        "R-precision     50.00    50.00  +0.00",
        "MAP@R           25.00    50.00  +25.00  (+25.00 to +25.00)",
        "NMI             50.00        -",
    ]
    other = report([3], [0.5], [0.5])
    three = format_comparison({"a": a, "b": b, "c": other})
    assert three.splitlines()[0].endswith("c - a")
    assert three.count("to +25.00") == 2, "no interval between reports of different classes"
