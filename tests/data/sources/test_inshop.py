from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.data.sources.layout import Counts


def test_inshop_queries_search_a_gallery(tmp_path):
    benchmark = load_benchmark(f"inshop:{miniatures.inshop(tmp_path)}", expected=Counts(6, 2, 4, 3, 2))
    assert benchmark.test.labels.tolist() == [3, 4]
    assert benchmark.gallery.labels.tolist() == [3, 3, 4, 4]
    assert "queries 2 images of 2 classes, gallery 4 images" in benchmark.notes[0]
