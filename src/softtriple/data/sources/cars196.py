"""Cars196: cars by make and model; the first 98 classes train, the other 98 test."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from softtriple.data.benchmark import Benchmark, MissingDataError, OnError
from softtriple.data.sources.folder import find_parts, list_images
from softtriple.data.sources.layout import Counts, check_complete, first_half_trains
from softtriple.data.splitting import index_names
from softtriple.errors import UserError

CARS196 = Counts(train=8_054, test=8_131, gallery=0, train_classes=98, test_classes=98)


def load_cars196(path: Path, *, on_error: OnError = "stop", expected: Counts | None = CARS196) -> Benchmark:
    """Load Cars196 from cars_annos.mat and car_ims/, or from class folders, also below train/ and test/.

    train/ and test/ were made for classification; they are combined and split by class as in the papers.
    """
    skipped: list[str] = []
    annotations = path / "cars_annos.mat"
    if annotations.is_file():
        from scipy.io import loadmat

        try:
            content = loadmat(annotations, squeeze_me=True)
            paths = [str(path / file) for file in content["annotations"]["relative_im_path"]]
            labels = content["annotations"]["class"].astype(np.int64) - 1
            class_names = tuple(str(name) for name in content["class_names"])
        except Exception as error:  # damaged files raise many types
            raise UserError(f"{annotations}: annotations and class_names cannot be read ({error})") from error
    elif path.is_dir():
        listings = [list_images(root, on_error) for root in find_parts(path) or (path,)]
        paths = [file for listing in listings for file in listing.paths]
        labels, class_names = index_names([name for listing in listings for name in listing.names])
        skipped = [file for listing in listings for file in listing.skipped]
    else:
        raise MissingDataError(f"{path}: no such folder; expected cars_annos.mat and car_ims/, or class folders in it")
    benchmark = first_half_trains("cars196", paths, labels, class_names)
    return check_complete(replace(benchmark, skipped=tuple(skipped)), path, on_error, expected)
