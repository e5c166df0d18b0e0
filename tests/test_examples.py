"""Every example runs from start to end in an empty folder and prints what it promises."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
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
    pytest.importorskip("lancedb", reason="LanceDB is not installed: nothing tests embed_and_search.py")
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


def losses(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"batch (\S+)", text)]


@pytest.mark.parametrize("backbone", ["conv-small", "timm:resnet18"])
def test_finetune_timm(backbone: str, run: Run, tmp_path: Path) -> None:
    if backbone.startswith("timm:"):
        if importlib.util.find_spec("timm") is None:
            pytest.skip("timm is not installed: finetune_timm.py is tested with a network of our own only")
        if not os.environ.get("SOFTTRIPLE_TEST_DOWNLOADS"):
            pytest.skip("the weights of timm:resnet18 would be downloaded: allow it by SOFTTRIPLE_TEST_DOWNLOADS=1")
    write_photos(tmp_path / "photos")
    assert run("finetune_timm.py", "photos", backbone, "1")[-1].startswith("unseen classes: R@1")
    assert (tmp_path / "encoder" / "model.safetensors").is_file()
