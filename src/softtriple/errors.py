"""The one exception that the command line prints as a single line, and what messages are made of.

Any other exception is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user can mend: the message says what is wrong, what was expected and what to type."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The closest of ``choices`` as the end of a message, or all of them if none is close.

    Example:
        >>> did_you_mean("sofftriple", ["softtriple", "margin"]), did_you_mean("x", ["softtriple", "margin"])
        ("did you mean 'softtriple'?", 'choose from softtriple, margin')
    """
    known = list(choices)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"


def counted(number: int, noun: str) -> str:
    """``number`` and the noun that it counts, in the singular or plural.

    Example:
        >>> counted(1, "class"), counted(2, "class"), counted(0, "query"), counted(3, "test item")
        ('1 class', '2 classes', '0 queries', '3 test items')
    """
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def byte_size(count: int | float) -> str:
    """A number of bytes as people write it.

    Example:
        >>> byte_size(230_000), byte_size(23_300_000), byte_size(8e9)
        ('0.2 MB', '23.3 MB', '8.00 GB')
    """
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
