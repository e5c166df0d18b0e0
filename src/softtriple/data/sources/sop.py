"""Stanford Online Products: 22 634 products with a few photographs each, split by the lists that come with the data."""

from pathlib import Path

from softtriple.data.benchmark import Benchmark, OnError
from softtriple.data.sources.layout import Counts, check_complete, image_split, read_fields

SOP = Counts(train=59_551, test=60_502, gallery=0, train_classes=11_318, test_classes=11_316)


def load_sop(path: Path, *, on_error: OnError = "stop", expected: Counts | None = SOP) -> Benchmark:
    """Load Stanford Online Products from the folder with Ebay_train.txt and Ebay_test.txt."""
    parts = [read_fields(path / f"Ebay_{part}.txt", 4, skip_lines=1) for part in ("train", "test")]
    # A product is named after its photographs, without the number: bicycle_final/111085122871_0.JPG
    names = {row[1]: row[3].rpartition("_")[0].replace("_final/", "/") for rows in parts for row in rows}
    number = {class_id: label for label, class_id in enumerate(names)}
    train, test = (image_split((path / row[3] for row in rows), (number[row[1]] for row in rows)) for rows in parts)
    benchmark = Benchmark(
        name="sop", class_names=tuple(names.values()), train=train, test=test, recall_at=(1, 10, 100, 1000)
    )
    return check_complete(benchmark, path, on_error, expected)
