"""Which stages are frozen."""

import pytest

from softtriple.errors import UserError
from softtriple.models.trainable import count_frozen


@pytest.mark.parametrize(("part", "frozen"), [("head", 4), ("all", 0), ("lora", 0), ("last:1", 3), ("last:4", 0)])
def test_the_part_that_is_trained_decides_what_is_frozen(part: str, frozen: int) -> None:
    assert count_frozen(part, 4, "a network") == frozen


def test_more_stages_than_there_are() -> None:
    with pytest.raises(UserError, match=r"last:5.*conv-small has only 4 stages"):
        count_frozen("last:5", 4, "conv-small")
