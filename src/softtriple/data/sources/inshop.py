"""In-Shop Clothes Retrieval (DeepFashion): queries and a gallery, split by the list that comes with the data."""

from pathlib import Path

from softtriple.data.benchmark import Benchmark, OnError
from softtriple.data.sources.layout import Counts, check_complete, image_split, read_fields
from softtriple.errors import UserError

INSHOP = Counts(train=25_882, test=14_218, gallery=12_612, train_classes=3_997, test_classes=3_985)


def load_inshop(path: Path, *, on_error: OnError = "stop", expected: Counts | None = INSHOP) -> Benchmark:
    """Load In-Shop Clothes Retrieval from the folder with list_eval_partition.txt (or Eval/ with it) and img/."""
    partition = path / "Eval" / "list_eval_partition.txt"
    if not partition.is_file():
        partition = path / "list_eval_partition.txt"
    root = path / "Img" if (path / "Img" / "img").is_dir() else path
    rows = read_fields(partition, 3, skip_lines=2)  # a count, then the names of the columns
    number = {item: label for label, item in enumerate(dict.fromkeys(row[1] for row in rows))}
    if unknown := sorted({row[2] for row in rows} - {"train", "query", "gallery"}):
        raise UserError(f"{partition}: status {unknown[0]!r}; expected train, query or gallery")
    train, query, gallery = (
        image_split(
            (root / file for file, _, status in rows if status == part),
            (number[item] for _, item, status in rows if status == part),
        )
        for part in ("train", "query", "gallery")
    )
    benchmark = Benchmark(
        name="inshop",
        class_names=tuple(number),
        train=train,
        test=query,
        gallery=gallery,
        recall_at=(1, 10, 20, 30, 40, 50),
    )
    return check_complete(benchmark, path, on_error, expected)
