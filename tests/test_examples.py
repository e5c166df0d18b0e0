"""Every example runs from start to end in an empty folder and prints what it promises."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from playwright.sync_api import Route, sync_playwright
from safetensors.torch import load_file
from tests.chromium import CHROMIUM, ONNXRUNTIME
from tests.intents import write_intents
from tests.tiny_models import save_text_model

from softtriple import Encoder
from softtriple.data.sources import glyphs
from softtriple.interop.export import export_encoder

EXAMPLES = Path(__file__).parent.parent / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run(unchecked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example in this process and an empty folder; returns the lines it prints."""

    def run_here(name: str, *arguments: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run_here


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def write_photos(folder: Path) -> None:
    """Four classes of three small noisy images, one colour per class."""
    random = np.random.default_rng(0)
    for label, color in enumerate([(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40)]):
        for number in range(3):
            noisy = np.clip(np.array(color) + random.integers(-30, 30, (40, 40, 3)), 0, 255)
            path = folder / f"class{label}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy.astype(np.uint8)).save(path)


def test_every_example_is_short_and_has_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60, path.name
        assert f'"{path.name}"' in tests, path.name


def test_loss_in_your_own_loop(run: Run) -> None:
    *_, scores, centers = run("loss_in_your_own_loop.py")
    assert min(numbers(scores)[:2]) > 0.95
    assert centers.startswith("centres left of 4")


def test_sklearn_pipeline(run: Run) -> None:
    plain, learned, _, own = run("sklearn_pipeline.py")
    assert min(numbers(plain) + numbers(learned) + numbers(own)) > 0.9


def test_embed_and_search(run: Run) -> None:
    lines = run("embed_and_search.py", "made")
    assert numbers(lines[0])[0] > 0.9
    assert "items of 10 classes in made/store" in lines[4]
    assert lines[5].startswith("1.000")  # the query is in the store


def test_add_classes_later(run: Run) -> None:
    counts, trained, added = run("add_classes_later.py")
    assert counts == "8 classes before, 10 after"
    assert min(numbers(trained) + numbers(added)) > 0.6


def test_find_hidden_modes(run: Run) -> None:
    one, _, ten = (float(line.split("purity ")[1].split()[0]) for line in run("find_hidden_modes.py"))
    assert ten > one + 0.15


@pytest.mark.slow  # three processes import torch; tests/distributed/test_example.py runs it in two that have
def test_two_ranks(run: Run, tmp_path: Path) -> None:
    alone = "\n".join(run("two_ranks.py"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            EXAMPLES / "two_ranks.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 5 of 10 classes on this one" in done.stdout
    # Two processes compute the same as one; only the order of summation differs.
    assert losses(done.stdout) == pytest.approx(losses(alone), abs=2e-3)


def test_tutorial_notebook(
    unchecked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its code cells one after the other, as a kernel would run them; it is stored without outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(glyphs, "SCRIPTS", {"Latin": (range(0x0041, 0x0180),)})  # it takes only the first 60 letters
    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    trained, before = (numbers(line)[0] for line in lines[:2])
    assert trained > before + 0.2
    assert any(line.endswith("pictures of 59 classes") for line in lines)
    assert "1.000  letter 7" in lines
    assert "1 class added: letter 59" in lines
    assert (tmp_path / "encoder.onnx").is_file()


@pytest.mark.skipif(
    CHROMIUM is None or not ONNXRUNTIME.is_dir(),
    reason="examples/browser is not tested: it needs chromium, and npm for onnxruntime-web",
)
def test_browser(tmp_path: Path, unchecked: None) -> None:
    """The page gives the vectors of the encoder in headless Chromium."""
    encoder = Encoder.from_backbone("conv-small", dim=8, input_size=28)
    made = export_encoder(encoder, tmp_path / "encoder.onnx")
    (tmp_path / "encoder.json").write_text(json.dumps({"description": made.description}))
    write_photos(tmp_path)
    photos = sorted(map(str, tmp_path.glob("class*/*.png")))[::3]
    kinds = {".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix("http://softtriple.test/") or "index.html"
        folder = {"index.html": EXAMPLES / "browser", "encoder.json": tmp_path, "encoder.onnx": tmp_path}
        file = folder.get(name, ONNXRUNTIME) / Path(name).name
        route.fulfill(path=file, content_type=kinds.get(file.suffix))

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.route("http://softtriple.test/**", answer)
        page.goto("http://softtriple.test/")
        page.locator("input:enabled").set_input_files(photos)
        page.locator("li").nth(len(photos) - 1).wait_for()
        shown = page.locator("li").all()
        found = [json.loads(item.get_attribute("data-vector") or "") for item in shown]
        assert (shown[0].text_content() or "").endswith("1.000")
        browser.close()
    # A canvas resizes a little differently from Pillow.
    cosines = (np.array(found) * encoder.embed(photos)).sum(axis=1)
    assert cosines.min() > 0.98


@pytest.mark.filterwarnings("ignore")  # of Lightning, about the loader and the machine
def test_lightning_module(run: Run) -> None:
    assert numbers(run("lightning_module.py")[-1])[0] > 0.9


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_sentence_transformers_trainer(run: Run, tmp_path: Path) -> None:
    save_text_model(tmp_path / "tiny")
    write_intents(tmp_path / "texts.csv", per_intent=8)
    *_, scores, centers = run("sentence_transformers_trainer.py", "texts.csv", "tiny", "2")
    assert all(0 <= score <= 1 for score in numbers(scores))
    assert centers.startswith("distinct centres of 4")
    given, trained = (load_file(tmp_path / folder / "model.safetensors") for folder in ("tiny", "trained"))
    assert trained.keys() == given.keys()
    assert any(not torch.equal(trained[name], given[name]) for name in given)


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"batch (\S+)", text)]


@pytest.mark.parametrize("backbone", ["conv-small", "timm:test_resnet"])
def test_finetune_timm(backbone: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model
    torch.save(create("test_resnet").state_dict(), tmp_path / "published.pth")

    def create_from_file(name: str, **options: object) -> object:
        """What timm does after a download."""
        return create(name, pretrained_cfg_overlay={"file": str(tmp_path / "published.pth")}, **options)

    monkeypatch.setattr(timm, "create_model", create_from_file)
    write_photos(tmp_path / "photos")
    assert run("finetune_timm.py", "photos", backbone, "1")[-1].startswith("unseen classes: R@1")
    assert (tmp_path / "encoder" / "model.safetensors").is_file()
