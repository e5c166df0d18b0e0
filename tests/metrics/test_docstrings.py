"""The worked examples in the docstrings are true."""

import doctest
import importlib

import pytest
import torch

MODULES = ["clustering", "comparison", "evaluate", "intervals", "report", "retrieval"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"softtriple.metrics.{name}")
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
