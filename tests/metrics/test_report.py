"""The report as a file and as a table."""

import json
from dataclasses import replace

import pytest

from softtriple.metrics.report import KMeansRuns, Report, format_table

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
    recall_per_class={"Ärger": 0.5, "b": 0.5},
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({**json.loads(REPORT.to_json()), "mapr": 1}), "unknown 'mapr'"),
        (json.dumps({"recall": {"1": 0.5}}), "no 'map_at_r'"),
        ("[1]", "JSON object"),
        *(
            (json.dumps({**json.loads(REPORT.to_json()), name: value}), "recall, intervals or kmeans is not as")
            for name, value in [
                ("recall", [0.5]),
                ("recall", {"one": 0.5}),
                ("intervals", {"recall@1": 0.5}),
                ("kmeans", {"seed": 0}),
                ("kmeans", 3),
            ]
        ),
    ],
)
def test_other_json_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        Report.from_json(text)


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
        "1 queries have no",
        "3 vectors are zero",
        "seed 4",
    ):
        assert part in table
    assert "NMI" not in format_table(replace(REPORT, nmi=None, ami=None, kmeans=None))
