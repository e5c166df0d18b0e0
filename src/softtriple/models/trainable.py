"""Which part of a network is trained: the head, the last stages, everything, or low-rank updates."""

import re

from softtriple.errors import UserError, counted


def check_trainable(part: str) -> None:
    """UserError unless ``part`` is "head", "all", "lora" or "last:N" with a positive N."""
    if not re.fullmatch(r"head|all|lora|last:[1-9][0-9]{0,8}", part):
        raise UserError(
            f"trainable = {part!r} must be head, all or last:N, such as last:2 for the last two stages;"
            " or lora, for transformers"
        )


def count_frozen(part: str, stages: int, backbone: str) -> int:
    """The number of frozen stages of ``backbone``, which has ``stages``, if ``part`` is trained.

    Example:
        >>> count_frozen("head", 5, "a network"), count_frozen("last:2", 5, "a network"), count_frozen("all", 5, "it")
        (5, 3, 0)
    """
    check_trainable(part)
    if part in ("all", "lora"):
        return 0
    if part == "head":
        return stages
    count = int(part.removeprefix("last:"))
    if count > stages:
        raise UserError(f"trainable = {part!r}: {backbone} has only {counted(stages, 'stage')}")
    return stages - count
