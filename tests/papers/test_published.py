"""The published tables against numbers read from the paper by eye."""

import pytest

from softtriple.losses import LOSSES
from softtriple.papers.published import read_published

TABLES = read_published()
SMALL = ["SemiHard", "LiftedStruct", "Clustering", "Npairs*", "ProxyNCA", "SoftMax_norm", "SoftTriple"]
LARGE = ["HDC", "Margin", "HTL", "SoftMax_norm", "SoftTriple"]


@pytest.mark.parametrize(
    ("name", "data", "methods", "columns"),
    [
        ("table1", "cub", SMALL, ["R@1", "R@2", "R@4", "R@8", "NMI"]),
        ("table2", "cub", LARGE, ["R@1", "R@2", "R@4", "R@8", "NMI"]),
        ("table3", "cars196", SMALL, ["R@1", "R@2", "R@4", "R@8", "NMI"]),
        ("table4", "cars196", LARGE, ["R@1", "R@2", "R@4", "R@8", "NMI"]),
        ("table5", "sop", [m for m in SMALL if m != "Npairs*"], ["R@1", "R@10", "R@100", "NMI"]),
        ("table6", "sop", ["Npairs*", *LARGE], ["R@1", "R@10", "R@100", "NMI"]),
    ],
)
def test_every_table_row_and_column(name: str, data: str, methods: list[str], columns: list[str]) -> None:
    table = TABLES[name]
    assert table.data.name == data
    assert [row.method for row in table.rows] == methods
    assert list(table.columns) == columns
    for row in table.rows:
        assert len(row.values) == len(columns)
        assert row.loss in {*LOSSES, "hdc"}
        recalls = [value for value in row.values[:-1] if value is not None]
        assert recalls == sorted(recalls)  # Recall@k rises with k


@pytest.mark.parametrize(
    ("table", "row", "values"),
    [
        ("table1", "semi-hard_64", (42.6, 55.0, 66.4, 77.2, 55.4)),
        ("table1", "proxy-nca_64", (49.2, 61.9, 67.9, 72.4, 59.5)),
        ("table1", "softtriple_64", (60.1, 71.9, 81.2, 88.5, 66.2)),
        ("table2", "hdc_384", (53.6, 65.7, 77.0, 85.6, None)),
        ("table2", "softtriple_512", (65.4, 76.4, 84.5, 90.4, 69.3)),
        ("table3", "n-pairs_64", (71.1, 79.7, 86.5, 91.6, 64.0)),
        ("table3", "softmax-norm_64", (76.8, 85.6, 91.3, 95.2, 66.7)),
        ("table4", "margin_128", (79.6, 86.5, 91.9, 95.1, 69.1)),
        ("table4", "htl_512", (81.4, 88.0, 92.7, 95.7, None)),
        ("table5", "proxy-nca_64", (73.7, None, None, 90.6)),
        ("table5", "clustering_64", (67.0, 83.7, 93.2, 89.5)),
        ("table6", "n-pairs_512", (67.7, 83.8, 93.0, 88.1)),
        ("table6", "softmax-norm_512", (78.0, 90.2, 96.0, 91.9)),
    ],
)
def test_numbers_as_printed(table: str, row: str, values: tuple[float | None, ...]) -> None:
    assert {row.name: row.values for row in TABLES[table].rows}[row] == values


@pytest.mark.parametrize(
    ("table", "sums"),
    [
        ("table1", (352.5, 440.1, 510.3, 570.7, 422.5)),
        ("table2", (303.9, 360.9, 407.6, 442.7, 206.6)),
        ("table3", (462.3, 534.4, 585.8, 625.4, 431.9)),
        ("table4", (402.4, 437.9, 462.6, 478.1, 208.9)),
        ("table5", (422.1, 424.8, 467.5, 541.5)),
        ("table6", (441.0, 523.2, 566.3, 362.7)),
    ],
)
def test_columns_add_up_to_what_is_printed(table: str, sums: tuple[float, ...]) -> None:
    columns = zip(*(row.values for row in TABLES[table].rows), strict=True)
    assert [sum(value or 0.0 for value in column) for column in columns] == pytest.approx(sums)


def test_notes() -> None:
    notes = {row.name: row.note for row in TABLES["table2"].rows}
    assert "ResNet50" in notes["margin_128"]
    assert "multi-scale" in next(row.note for row in TABLES["table1"].rows if row.loss == "n-pairs")
