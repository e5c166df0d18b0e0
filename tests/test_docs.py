"""What the documentation says exists, and its code runs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import softtriple

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
MODULES = sorted(module.name for module in pkgutil.walk_packages(softtriple.__path__, "softtriple."))


@pytest.mark.parametrize("name", [name for name in MODULES if name != "softtriple.__main__"])
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"np": np, "torch": torch}).failed == 0


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_blocks_run(path: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, str(path), "exec"), {})


def test_every_name_of_the_paper_page_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    functions = re.findall(r"`(softtriple\.[\w.]+)`", text)
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(functions) > 8
    assert len(tests) > 8
    for function in functions:
        module, _, name = function.rpartition(".")
        assert hasattr(importlib.import_module(module), name), function
    for file, test in tests:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_public_names() -> None:
    for name in dir(softtriple):
        assert getattr(softtriple, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'TripletLoss'"):
        softtriple.TripletLoss  # noqa: B018


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
