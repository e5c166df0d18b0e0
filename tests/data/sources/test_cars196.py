import numpy as np
import pytest
from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.data.sources.layout import Counts

TWO_AND_TWO = Counts(train=6, test=6, gallery=0, train_classes=2, test_classes=2)


def test_both_forms_of_cars_give_the_same_halves(tmp_path):
    by_list = load_benchmark(f"cars196:{miniatures.cars_mat(tmp_path / 'a')}", expected=TWO_AND_TWO)
    by_folder = load_benchmark(f"cars196:{miniatures.cars_folders(tmp_path / 'b')}", expected=TWO_AND_TWO)
    assert by_list.class_names == ("Car 0", "Car 1", "Car 2", "Car 3")
    assert np.bincount(by_list.train.labels).tolist() == np.bincount(by_folder.train.labels).tolist() == [3, 3]
    assert np.bincount(by_list.test.labels).tolist() == np.bincount(by_folder.test.labels).tolist() == [0, 0, 3, 3]


@pytest.mark.parametrize("damage", [lambda content: content[:200], lambda content: b"MATLAB", lambda content: b""])
def test_damaged_annotations_are_named(tmp_path, damage):
    root = miniatures.cars_mat(tmp_path)
    file = root / "cars_annos.mat"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"cars_annos\.mat: annotations and class_names cannot be read"):
        load_benchmark(f"cars196:{root}")
