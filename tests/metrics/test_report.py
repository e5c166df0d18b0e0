"""The report as a file and as a table."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest

from softtriple.errors import UserError
from softtriple.metrics.report import ClassResult, KMeansRuns, Report, format_table

REPORT = Report(
    recall={1: 0.5, 10: 0.75},
    precision_at_1=0.5,
    r_precision=0.25,
    map_at_r=0.125,
    nmi=0.6,
    ami=0.4,
    num_queries=8,
    num_gallery=9,
    num_classes=2,
    num_without_positives=1,
    num_zero_vectors=3,
    kmeans=KMeansRuns(seed=4, restarts=5, objective=1.5, nmi_spread=0.01, ami_spread=0.02),
    intervals={"recall@1": (0.4, 0.6)},
    per_class={
        "Ärger": ClassResult(queries=3, recall_at_1=0.5, map_at_r=0.25),
        "b": ClassResult(queries=4, recall_at_1=0.75, map_at_r=0.5),
    },
    seconds={"ranking": 0.1},
)


@pytest.mark.parametrize("report", [REPORT, replace(REPORT, nmi=None, ami=None, kmeans=None, accuracy=0.9)])
def test_json_gives_the_report_back(report):
    assert Report.from_json(report.to_json()) == report


def test_json_has_the_documented_fields():
    values = json.loads(REPORT.to_json())
    documented = {"recall", "precision_at_1", "r_precision", "map_at_r", "nmi", "ami"}
    assert documented | {"num_queries", "num_classes", "intervals", "seconds"} <= values.keys()
    assert values["recall"] == {"1": 0.5, "10": 0.75}
    assert values["intervals"]["recall@1"] == [0.4, 0.6]


def changed(**values):
    return json.dumps({**json.loads(REPORT.to_json()), **values})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (changed(mapr=1), "mapr"),
        (json.dumps({"recall": {"1": 0.5}}), "map_at_r"),
        ("[1]", "JSON"),
        ("{", "line 1"),
        (changed(recall=[0.5]), "recall"),
        (changed(recall={"one": 0.5}), "recall.one"),
        (changed(map_at_r="high"), "map_at_r"),
        (changed(intervals={"recall@1": 0.5}), "intervals.recall@1"),
        (changed(kmeans={"seed": 0}), "kmeans.restarts"),
        (changed(kmeans=3), "kmeans"),
        (changed(per_class={"b": {"queries": 1, "recall": 1}}), "per_class.b.recall"),
    ],
)
def test_other_json_is_refused_by_name(text, field):
    with pytest.raises(UserError, match=re.escape(field)):
        Report.from_json(text)


def test_construction_is_validated_and_frozen():
    with pytest.raises(ValueError, match="map_at_r"):
        replace(REPORT, map_at_r="high")
    with pytest.raises(FrozenInstanceError):
        REPORT.map_at_r = 1.0


def test_recall_per_class_is_recall_at_1():
    assert REPORT.recall_per_class == {"Ärger": 0.5, "b": 0.75}


def test_reports_of_the_first_version_can_be_read():
    values = json.loads(REPORT.to_json())
    values["recall_per_class"] = {"b": 0.5}
    del values["per_class"], values["incomplete"]
    assert Report.from_json(json.dumps(values)) == replace(REPORT, per_class={})


def test_a_single_run_of_kmeans_has_no_spread():
    alone = replace(REPORT, kmeans=KMeansRuns(seed=4, restarts=1, objective=1.5, nmi_spread=None, ami_spread=None))
    assert Report.from_json(alone.to_json()) == alone
    assert format_table(alone).endswith("k-means: one run from seed 4")


def test_table_says_what_was_left_out():
    table = format_table(replace(REPORT, accuracy=0.9))
    for part in (
        "Recall@10     75.00",
        "40.00 to 60.00",
        "NMI",
        "Accuracy",
        "left out: 1 query",
        "3 zero vectors",
        "seed 4",
    ):
        assert part in table
    assert "incomplete" not in table
    assert "incomplete" in format_table(replace(REPORT, incomplete=True))
    assert "NMI" not in format_table(replace(REPORT, nmi=None, ami=None, kmeans=None))
