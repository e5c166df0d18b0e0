"""CUB-200-2011: birds; the first 100 classes train, the other 100 test."""

from pathlib import Path

import numpy as np

from softtriple.data.benchmark import Benchmark, OnError
from softtriple.data.sources.layout import Counts, check_complete, first_half_trains, read_fields
from softtriple.errors import UserError

CUB = Counts(train=5_864, test=5_924, gallery=0, train_classes=100, test_classes=100)


def load_cub(path: Path, *, on_error: OnError = "stop", expected: Counts | None = CUB) -> Benchmark:
    """Load CUB-200-2011 from the folder with images.txt, image_class_labels.txt, classes.txt and images/."""
    names, files, classes = (
        {row[0]: row[1] for row in read_fields(path / file, 2)}
        for file in ("classes.txt", "images.txt", "image_class_labels.txt")
    )
    if files.keys() != classes.keys():
        raise UserError(f"{path}: images.txt lists {len(files)} images, image_class_labels.txt {len(classes)}")
    if unknown := set(classes.values()) - names.keys():
        raise UserError(f"{path}: class {min(unknown)} of image_class_labels.txt is not in classes.txt")
    paths = [str(path / "images" / file) for file in files.values()]
    number = {class_id: label for label, class_id in enumerate(names)}
    labels = np.array([number[classes[image]] for image in files], dtype=np.int64)
    benchmark = first_half_trains("cub", paths, labels, tuple(names.values()))
    return check_complete(benchmark, path, on_error, expected)
