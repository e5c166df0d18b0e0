"""The four benchmarks of the papers, in the layout in which they are published, checked against the published counts.

CUB-200-2011 (birds) and Cars196 train on the first half of their classes and test on the other; SOP (Stanford Online
Products) and In-Shop (DeepFashion) bring lists. A copy that lacks images is an error that says which, because a score
on fewer images is not comparable; ``on_error="skip"`` accepts it and says so with the results.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.data.benchmark import Benchmark, ImageFiles, Labels, OnError, Split, index_names, with_notes
from softtriple.data.images import ImageError
from softtriple.data.sources.folder import has_parts, list_images


class Counts(NamedTuple):
    """How many images and classes a benchmark has."""

    train: int
    test: int
    gallery: int
    train_classes: int
    test_classes: int

    def __str__(self) -> str:
        gallery = f" and {self.gallery} to search" if self.gallery else ""
        return (
            f"{self.train} images of {self.train_classes} classes to train on, "
            f"{self.test}{gallery} of {self.test_classes} to test on"
        )


CUB = Counts(train=5_864, test=5_924, gallery=0, train_classes=100, test_classes=100)
CARS196 = Counts(train=8_054, test=8_131, gallery=0, train_classes=98, test_classes=98)
SOP = Counts(train=59_551, test=60_502, gallery=0, train_classes=11_318, test_classes=11_316)
INSHOP = Counts(train=25_882, test=14_218, gallery=12_612, train_classes=3_997, test_classes=3_985)


def load_cub(path: Path, *, on_error: OnError = "stop", expected: Counts | None = CUB) -> Benchmark:
    """Load CUB-200-2011 from the folder with images.txt, image_class_labels.txt, classes.txt and images/."""
    names = _pairs(path / "classes.txt")
    files = _pairs(path / "images.txt")
    classes = _pairs(path / "image_class_labels.txt")
    if files.keys() != classes.keys():
        raise ValueError(f"{path}: images.txt lists {len(files)} images, image_class_labels.txt {len(classes)}")
    if strangers := set(classes.values()) - names.keys():
        raise ValueError(f"{path}: classes.txt does not name class {min(strangers)} of image_class_labels.txt")
    paths = [str(path / "images" / file) for file in files.values()]
    number = {class_id: label for label, class_id in enumerate(names)}
    labels = np.array([number[classes[image]] for image in files], dtype=np.int64)
    return _first_half_trains("cub", path, paths, labels, tuple(names.values()), on_error, expected)


def load_cars196(path: Path, *, on_error: OnError = "stop", expected: Counts | None = CARS196) -> Benchmark:
    """Load Cars196 from cars_annos.mat and car_ims/, or from class folders, also when divided over train/ and test/.

    The division train/test of the class folders was made for classification and plays no part here.
    """
    if (path / "cars_annos.mat").is_file():
        from scipy.io import loadmat

        try:
            content = loadmat(path / "cars_annos.mat", squeeze_me=True)
            annotations = content["annotations"]
            paths = [str(path / file) for file in annotations["relative_im_path"]]
            labels = annotations["class"].astype(np.int64) - 1
            class_names = tuple(str(name) for name in content["class_names"])
        except Exception as error:  # damaged ones raise whatever scipy meets first
            raise ValueError(
                f"{path / 'cars_annos.mat'}: annotations and class_names cannot be read ({error})"
            ) from error
    else:
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is no folder with cars_annos.mat and car_ims/, or one folder a class")
        roots = [path / "train", path / "test"] if has_parts(path) else [path]
        listed = [list_images(root, on_error) for root in roots]
        paths = [file for files, _, _ in listed for file in files]
        labels, class_names = index_names([name for _, names, _ in listed for name in names])
    return _first_half_trains("cars196", path, paths, labels, class_names, on_error, expected)


def load_sop(path: Path, *, on_error: OnError = "stop", expected: Counts | None = SOP) -> Benchmark:
    """Load Stanford Online Products from the folder with Ebay_train.txt and Ebay_test.txt."""
    parts = [_fields(path / f"Ebay_{part}.txt", 4, skip_lines=1) for part in ("train", "test")]
    # The name of a product is its picture's without the number of the view: bicycle_final/111085122871_0.JPG
    names = {row[1]: row[3].rpartition("_")[0].replace("_final/", "/") for rows in parts for row in rows}
    number = {class_id: label for label, class_id in enumerate(names)}
    train, test = (
        Split(
            ImageFiles(tuple(str(path / row[3]) for row in rows)),
            np.array([number[row[1]] for row in rows], dtype=np.int64),
        )
        for rows in parts
    )
    benchmark = Benchmark(
        name="sop",
        class_names=tuple(names.values()),
        train=train,
        test=test,
        recall_at=(1, 10, 100, 1000),
    )
    return _checked(benchmark, path, on_error, expected)


def load_inshop(path: Path, *, on_error: OnError = "stop", expected: Counts | None = INSHOP) -> Benchmark:
    """Load In-Shop Clothes Retrieval from the folder with list_eval_partition.txt (or Eval/ with it) and img/."""
    partition = path / "Eval" / "list_eval_partition.txt"
    if not partition.is_file():
        partition = path / "list_eval_partition.txt"
    root = path / "Img" if (path / "Img" / "img").is_dir() else path
    rows = _fields(partition, 3, skip_lines=2)  # a count, then the names of the columns
    number = {item: label for label, item in enumerate(dict.fromkeys(row[1] for row in rows))}
    if strangers := sorted({row[2] for row in rows} - {"train", "query", "gallery"}):
        raise ValueError(f"{partition}: status {strangers[0]!r} is none of train, query and gallery")
    train, query, gallery = (
        Split(
            ImageFiles(tuple(str(root / file) for file, _, status in rows if status == part)),
            np.array([number[item] for _, item, status in rows if status == part], dtype=np.int64),
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
    return _checked(benchmark, path, on_error, expected)


def _first_half_trains(
    name: str,
    root: Path,
    paths: Sequence[str],
    labels: Labels,
    class_names: tuple[str, ...],
    on_error: OnError,
    expected: Counts | None,
) -> Benchmark:
    everything = Split(ImageFiles(tuple(paths)), labels)
    is_train = labels < len(class_names) // 2
    benchmark = Benchmark(
        name=name,
        class_names=class_names,
        train=everything.take(np.flatnonzero(is_train)),
        test=everything.take(np.flatnonzero(~is_train)),
    )
    return _checked(benchmark, root, on_error, expected)


def _checked(benchmark: Benchmark, root: Path, on_error: OnError, expected: Counts | None) -> Benchmark:
    """``benchmark`` if it is complete; what is missing is an error, or with "skip" left out and noted."""
    complaints = []
    found = count(benchmark)
    if expected is not None and found != expected:
        complaints.append(f"the lists hold {found}; published are {expected}")
    splits = [benchmark.train, benchmark.test, *([benchmark.gallery] if benchmark.gallery else [])]
    present = [np.array([Path(file).is_file() for file in _paths(split)], dtype=bool) for split in splits]
    if missing := [file for split, there in zip(splits, present, strict=True) for file in _absent(split, there)]:
        few = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        complaints.append(f"{len(missing)} of {sum(len(split) for split in splits)} images are missing: {few}")
    if not complaints:
        return with_notes(benchmark)
    complaint = f"{benchmark.name}:{root}: incomplete copy: {'; '.join(complaints)}"
    if on_error == "stop":
        raise ValueError(complaint)
    kept = [split.take(np.flatnonzero(there)) for split, there in zip(splits, present, strict=True)]
    smaller = replace(benchmark, train=kept[0], test=kept[1], gallery=kept[2] if benchmark.gallery else None)
    left_out = (f"left out: {ImageError(file, 'no such file')}" for file in missing)
    return with_notes(smaller, *left_out, f"{complaint}: results are not comparable with published ones")


def count(benchmark: Benchmark) -> Counts:
    """The counts of ``benchmark``; classes to test on are those of the queries."""
    return Counts(
        train=len(benchmark.train),
        test=len(benchmark.test),
        gallery=len(benchmark.gallery) if benchmark.gallery else 0,
        train_classes=len(np.unique(benchmark.train.labels)),
        test_classes=len(np.unique(benchmark.test.labels)),
    )


def _paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.items, ImageFiles)
    return split.items.paths


def _absent(split: Split, there: np.ndarray) -> list[str]:
    return [file for file, present in zip(_paths(split), there, strict=True) if not present]


def _pairs(path: Path) -> dict[str, str]:
    return {row[0]: row[1] for row in _fields(path, 2)}


def _fields(path: Path, num_fields: int, skip_lines: int = 0) -> list[tuple[str, ...]]:
    """The lines of a list, each split at blanks into ``num_fields`` fields."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; the benchmark's PATH is the folder that holds it")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8 ({error})") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if number <= skip_lines or not line.strip():
            continue
        row = tuple(line.split(maxsplit=num_fields - 1))
        if len(row) != num_fields:
            raise ValueError(f"{path}: line {number} has {len(row)} fields, not {num_fields}")
        rows.append(row)
    return rows
