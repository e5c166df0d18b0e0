import subprocess
import sys
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softtriple.models import Encoder
from softtriple.models.backbones.text import CACHED_CHARACTERS, HashedNgrams, _cached_buckets, text


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


def test_the_mean_over_the_ngrams_and_nothing_else() -> None:
    network = text(buckets=50, width=4)
    weights = network.get_submodule("ngrams").weight
    rows = torch.tensor([[3, 7, 3, 0, 0], [50, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    expected = torch.stack([(2 * weights[3] + weights[7]) / 3, weights[50], torch.zeros(4)])
    torch.testing.assert_close(network(rows), expected)


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


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="buckets = 0 and width = 128 must be positive"):
        text(buckets=0)
