"""Texts all the way: a table of questions becomes a run that tells intents apart it was never trained on."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from tests.intents import utterances, write_intents
from tests.report.html_tree import parse, text

from softtriple import Encoder
from softtriple.cli import main
from softtriple.config import Config, with_settings
from softtriple.data import Split, Texts, Vectors, read_vectors
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.models.features import Reading, cached_feed, embed_feed, item_feed
from softtriple.progress import Reporter
from softtriple.training.train import train

QUIET = Reporter(quiet=True)
COLUMNS = ("--set", "data.text=utterance", "--set", "data.label=intent")


@pytest.fixture
def softtriple(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["softtriple", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_from_a_table_to_answers(softtriple, tmp_path: Path) -> None:
    table, run = write_intents(tmp_path / "intents.csv"), tmp_path / "run"
    status, out, err = softtriple("train", table, "--out", run, *COLUMNS, "--json")
    assert status == 0, err
    assert "backbone: text" in err
    report = json.loads(out)
    assert report["num_classes"] == 12  # the other twelve were trained on

    # Better on new intents than counting n-grams, which is what the encoder starts from.
    rows = utterances()
    intents = sorted({intent for _, intent in rows})
    unseen = [(question, intent) for question, intent in rows if intent in intents[12:]]
    counted = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True).fit([q for q, _ in rows])
    vectors = torch.tensor(counted.transform([question for question, _ in unseen]).toarray(), dtype=torch.float32)
    labels = torch.tensor([intents.index(intent) for _, intent in unseen])
    floor = evaluate(Embeddings(vectors, labels), kmeans_restarts=0, bootstrap=0)
    assert report["num_queries"] == len(unseen)
    assert report["recall"]["1"] > floor.recall[1]
    assert report["map_at_r"] > floor.map_at_r + 0.05

    page = parse((run / "report.html").read_text(encoding="utf-8"))
    shown = [text(element) for element in page.iter("p") if element.get("class") == "text"]
    assert shown
    assert set(shown) <= {question for question, _ in rows}
    assert not list(page.iter("img"))

    assert json.loads(softtriple("evaluate", run, "--json")[1])["recall"] == report["recall"]
    status, out, err = softtriple("evaluate", run, "--data", table, *COLUMNS, "--json")
    assert status == 0, err
    assert json.loads(out)["recall"] == report["recall"]
    status, out, err = softtriple("evaluate", run, "--data", table, "--json")
    assert "columns: 'utterance' (text) and 'intent' (label)" in err
    assert json.loads(out)["recall"] == report["recall"]

    assert softtriple("embed", run, table, "--out", tmp_path / "vectors.npz", *COLUMNS)[0] == 0
    embedded = read_vectors(tmp_path / "vectors.npz")
    questions = [question for question, _ in rows]
    np.testing.assert_allclose(embedded.vectors, Encoder.load(run).embed(questions), atol=1e-6)

    status, out, err = softtriple("export", run, "--format", "torchscript", "--out", tmp_path / "encoder.pt", "--json")
    assert status == 0, err
    assert json.loads(out)["description"]["class_names"] == intents[:12]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["evaluate", ".", "--set", "data.text=a"], "--data"),
        (["evaluate", ".", "--data", "x", "--set", "train.epochs=1"], "only data.* settings"),
        (["embed", ".", "x", "--out", "x.npz", "--set", "model.dim=1"], "only data.* settings"),
    ],
)
def test_settings_without_effect_are_refused(softtriple, arguments: list[str], sentence: str) -> None:
    status, _, err = softtriple(*arguments)
    assert status == 2
    assert sentence in " ".join(err.split())


def test_a_frozen_encoder_trains_its_head_on_kept_features(tmp_path: Path) -> None:
    settings = ["data.text=utterance", "data.label=intent", "model.trainable=head", "train.epochs=1", "model.dim=8"]
    table = write_intents(tmp_path / "intents.csv", per_intent=6)
    run = train(str(table), config=with_settings(Config(), settings), reporter=QUIET)
    read = run.benchmark().test
    anew = embed_feed(run.encoder, item_feed(run.encoder, read, Reading()))
    torch.testing.assert_close(run.test_embeddings.vectors, anew)
    kept = cached_feed(run.encoder, read, Reading(), frozen=1, views=1)
    torch.testing.assert_close(embed_feed(run.encoder, kept), anew)


def test_an_encoder_of_another_kind_is_refused() -> None:
    texts = Split(Texts(("a", "b")), np.array([0, 1]))
    vectors = Split(Vectors(np.zeros((2, 3), dtype=np.float32)), np.array([0, 1]))
    with pytest.raises(ValueError, match=r"conv-small.* takes images, but the data are texts"):
        item_feed(Encoder.from_backbone("conv-small"), texts, Reading())
    with pytest.raises(ValueError, match=r"text.* takes texts, but the data are vectors"):
        item_feed(Encoder.from_backbone("text"), vectors, Reading())
