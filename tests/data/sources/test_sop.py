from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.data.sources.layout import Counts


def test_sop_follows_its_lists(tmp_path):
    benchmark = load_benchmark(f"sop:{miniatures.sop(tmp_path)}", expected=Counts(6, 4, 0, 3, 2))
    assert benchmark.class_names == ("chair/100", "chair/200", "chair/300", "chair/400", "chair/500")
    assert benchmark.test.labels.tolist() == [3, 3, 4, 4]
    assert benchmark.recall_at == (1, 10, 100, 1000)
