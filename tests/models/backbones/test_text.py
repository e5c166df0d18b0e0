import math
import subprocess
import sys
import zlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from softtriple.models import Encoder
from softtriple.models.backbones.text import CACHED_CHARACTERS, HashedNgrams, _cached_buckets, text, tfidf_table


def by_the_book(words: list[str], buckets: int) -> list[int]:
    """Buckets of the n-grams of normalised words, as the docstring of HashedNgrams says it."""
    framed = ["<" + word + ">" for word in words]
    grams = []
    for word in framed:
        grams.append(word)
        for n in (3, 4, 5):
            for start in range(len(word) - n + 1):
                grams.append(word[start : start + n])
    for number in range(len(framed) - 1):
        grams.append(framed[number] + " " + framed[number + 1])
    return [zlib.crc32(gram.encode("utf-8")) % buckets + 1 for gram in grams]


def test_rows_by_the_book() -> None:
    rows = HashedNgrams(buckets=1000)(["Reset my PIN!", "ﬁx  it", ""])
    expected = [by_the_book(["reset", "my", "pin", "!"], 1000), by_the_book(["fix", "it"], 1000), []]
    for row, buckets in zip(rows.tolist(), expected, strict=True):
        assert row == buckets + [0] * (rows.shape[1] - len(buckets))


def test_rows_are_the_same_in_another_process() -> None:
    code = (
        "from softtriple.models.backbones.text import HashedNgrams; "
        "print(HashedNgrams(buckets=99)(['Straße 5']).tolist())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(HashedNgrams(buckets=99)(["STRASSE 5"]).tolist())


@given(st.text(max_size=60), st.integers(1, 50))
def test_every_text_has_buckets_in_range(content: str, buckets: int) -> None:
    rows = HashedNgrams(buckets=buckets)([content, "a"])
    assert rows.dtype == torch.int64
    assert 0 <= int(rows.min()) <= int(rows.max()) <= buckets


def test_an_endless_text_is_cut() -> None:
    hashed = HashedNgrams(buckets=1000)
    assert hashed(["ab " * 100_000]).shape[1] < 4096 * 4
    assert hashed(["x" * 4096 + "y"]).equal(hashed(["x" * 4096]))


def test_long_words_do_not_fill_the_cache() -> None:
    hashed = HashedNgrams(buckets=1000)
    _cached_buckets.cache_clear()
    words = ["short", "x" * 2000, "y" * (CACHED_CHARACTERS - 2), "z" * (CACHED_CHARACTERS - 1)]  # without < and >
    assert hashed([" ".join(words)])[0].tolist() == by_the_book(words, 1000)
    assert _cached_buckets.cache_info().currsize == 2


def test_the_unit_length_mean_over_the_ngrams_and_nothing_else() -> None:
    network = text(buckets=50, width=4)
    weights = network.get_submodule("ngrams").weight
    rows = torch.tensor([[3, 7, 3, 0, 0], [50, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    expected = torch.stack([(2 * weights[3] + weights[7]) / 3, weights[50], torch.zeros(4)])
    torch.testing.assert_close(network(rows), F.normalize(expected, dim=1))


def test_the_compiled_form_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = text(buckets=50, width=4)
    rows = network.preprocess(["how do I reset it", "it", ""])
    expected = network(rows)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(network(rows), expected)


def test_a_misspelt_word_stays_near() -> None:
    """Before any training the vectors are a random projection of the n-grams, which keeps their overlap."""
    torch.manual_seed(0)
    right, wrong, other = Encoder.from_backbone("text", dim=None).embed(["subscription", "subscripton", "password"])
    assert right @ wrong > 0.5 > right @ other


# Embeddings that start as TF-IDF.

TEXTS = [
    "how do I reset my password",
    "reset the password please",
    "where is my order",
    "my order has not arrived",
    "cancel the subscription",
    "please cancel my order",
]
UNSEEN = ["track a parcel", "tracking of parcels", "reset my order"]


def tfidf_cosines(texts: list[str], known: list[str], buckets: int) -> list[list[float]]:
    """Cosines between TF-IDF vectors of ``texts`` over hashed n-grams; document frequencies are those of ``known``."""
    hashed = HashedNgrams(buckets=buckets)
    documents = [[bucket for bucket in hashed([content])[0].tolist() if bucket] for content in known]
    vectors = []
    for content in texts:
        vector: dict[int, float] = {}
        for bucket in hashed([content])[0].tolist():
            if bucket:
                frequency = sum(bucket in document for document in documents)
                vector[bucket] = vector.get(bucket, 0.0) + math.log((1 + len(known)) / (1 + frequency)) + 1
        length = math.sqrt(sum(value**2 for value in vector.values()))
        vectors.append({bucket: value / length for bucket, value in vector.items()})
    return [[sum(one[b] * other.get(b, 0.0) for b in one) for other in vectors] for one in vectors]


def test_the_table_computes_tfidf() -> None:
    buckets, width = 2**12, 6000
    network = text(buckets=buckets, width=width)
    table = tfidf_table(network.preprocess(TEXTS), buckets, width)
    with torch.no_grad():
        network.get_parameter("ngrams.weight").copy_(table)
    texts = TEXTS + UNSEEN
    embedded = network(network.preprocess(texts))
    expected = torch.tensor(tfidf_cosines(texts, TEXTS, buckets))
    torch.testing.assert_close(embedded @ embedded.T, expected, atol=0.05, rtol=0)


def test_the_table_knows_ngrams_that_the_texts_do_not_have() -> None:
    rows = HashedNgrams(buckets=500)(TEXTS)
    table = tfidf_table(rows, 500, 24)
    assert table.shape == (501, 24)
    assert table.dtype == torch.float32
    assert not table[0].any()
    unseen = sorted(set(range(1, 501)) - set(rows.flatten().tolist()))
    assert unseen
    assert (table[unseen].norm(dim=1) > 0.1).all()


def test_rare_ngrams_weigh_more() -> None:
    """An n-gram of every text has idf 1, an unseen one log(1 + texts) + 1: all of the length of the rows."""
    rows = torch.tensor([[1, 2], [1, 3], [1, 4]])
    lengths = tfidf_table(rows, 5, 3000).norm(dim=1)
    torch.testing.assert_close(lengths[5].item(), math.log(4) + 1, rtol=1e-4, atol=0)
    torch.testing.assert_close(lengths[2].item(), math.log(2) + 1, rtol=1e-4, atol=0)
    assert lengths[1] < lengths[2] < lengths[5]


def test_the_table_does_not_depend_on_a_generator() -> None:
    rows = HashedNgrams(buckets=300)(TEXTS)
    torch.manual_seed(0)
    first = tfidf_table(rows, 300, 30)
    torch.manual_seed(1)
    assert torch.equal(tfidf_table(rows, 300, 30), first)


@pytest.mark.parametrize("texts", [["one text"], [""], ["", "", "a"], ["same", "same"]])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_a_table_of_hardly_any_texts(texts: list[str], width: int) -> None:
    table = tfidf_table(HashedNgrams(buckets=40)(texts), 40, width)
    assert table.shape == (41, width)
    assert table.isfinite().all()
    assert table[1:].any()


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="buckets = 0 and width = 768 must be positive"):
        text(buckets=0)
