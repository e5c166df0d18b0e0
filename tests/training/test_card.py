import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import softtriple as st
from softtriple.config import Config
from softtriple.metrics.report import metric_rows
from softtriple.training import Run
from softtriple.training.card import GENERATED, model_card, write_card


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    values = 4 * random.standard_normal((6, 8))[labels] + random.standard_normal((60, 8))
    out = tmp_path_factory.mktemp("card") / "run"
    st.train((values.astype(np.float32), labels), out=out, dim=4, epochs=2)
    return out


def test_every_run_has_a_card_with_its_numbers(run):
    loaded, card = Run.load(run), (run / "README.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in card.splitlines() if "|" in line}
    for title, name, share in metric_rows(loaded.report):
        assert rows[title][1] == f"{100 * share:.1f}"
        if name in loaded.report.intervals:
            low, high = loaded.report.intervals[name]
            assert rows[title][2] == f"{100 * low:.1f} to {100 * high:.1f}"
    assert rows["Recall@1"][3].startswith(f"{100 * loaded.baseline.recall[1]:.1f}")
    assert "3 classes" in card
    assert "not trained on" in card
    for heading in ("Data", "Results", "Intended use", "Licence", "Use"):
        assert f"## {heading}\n" in card
    assert "## Calibration" not in card


def test_the_head_is_yaml_that_the_hub_reads(run):
    yaml = pytest.importorskip("yaml")
    card = model_card(Run.load(run), repo="me/vectors", licence="apache-2.0")
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["library_name"] == "softtriple"
    assert head["pipeline_tag"] == "feature-extraction"
    assert head["license"] == "apache-2.0"
    assert "license" not in yaml.safe_load(model_card(Run.load(run)).split("---\n")[1])


def test_a_calibration_is_shown(run, tmp_path):
    (run / "calibration.json").write_text(
        '{"threshold": 0.41237, "threshold_interval": [0.4, 0.425], "classes|x": 7, "curve": [1, 2]}'
    )
    try:
        card = model_card(Run.load(run))
    finally:
        (run / "calibration.json").unlink()
    assert "| threshold | 0.4124 (0.4 to 0.425) |" in card
    assert "| classes\\|x | 7 |" in card
    assert "curve" not in card


def test_a_card_that_a_person_took_over_is_kept(run, tmp_path):
    path = tmp_path / "README.md"
    write_card(Run.load(run), path)
    assert GENERATED in path.read_text()
    write_card(Run.load(run), path, repo="me/vectors")
    assert "me/vectors" in path.read_text()
    path.write_text("mine")
    write_card(Run.load(run), path)
    assert path.read_text() == "mine"


def test_names_of_classes_cannot_format_the_card(run):
    loaded = Run.load(run)
    loaded.encoder.class_names = ("# [x](http://evil)", "a\nb", "<script>", "*")
    card = model_card(loaded)
    assert "<script>" not in card
    assert "\n# [" not in card
    assert "a b" in card


def snippet(card: str, library: str) -> str:
    return next(code for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if library in code)


def test_the_code_for_vectors_runs(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    (run.parent / "RUN").symlink_to(run)
    names: dict = {}
    exec(snippet(model_card(Run.load(run)), "softtriple"), names)
    assert names["vectors"].shape == (1, 4)


@pytest.mark.parametrize("size", [(90, 61), (40, 200), (32, 32)])
def test_the_code_without_softtriple_prepares_an_image_as_the_encoder_does(run, size, tmp_path, monkeypatch):
    encoder = st.Encoder.from_backbone("conv-small", dim=4).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")

    class Session:
        def __init__(self, path: str) -> None:
            assert path == "encoder.onnx"

        def run(self, _: None, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():
                return [encoder(encoder.prepare(torch.from_numpy(inputs["images"].copy()))).numpy()]

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    finished = Run.load(run)
    card = model_card(Run(config=Config(), encoder=encoder, report=finished.report, baselines={}))
    names: dict = {}
    monkeypatch.chdir(tmp_path)
    exec(snippet(card, "onnxruntime").replace("photo.jpg", "photo.png"), names)
    np.testing.assert_allclose(names["vectors"], encoder.embed([tmp_path / "photo.png"]), atol=1e-6)
