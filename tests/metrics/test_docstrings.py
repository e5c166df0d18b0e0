"""The worked examples in the docstrings are true."""

import doctest

import pytest
import torch

from softtriple.metrics import clustering, comparison, evaluate, intervals, ranks, report, retrieval


@pytest.mark.parametrize(
    "module",
    [clustering, comparison, evaluate, intervals, ranks, report, retrieval],
    ids=lambda module: module.__name__,
)
def test_examples(module):
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
