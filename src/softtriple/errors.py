"""UserError, which the command line prints as one line, and helpers to word messages.

Any other exception is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can fix; the message says what is wrong, what was expected and what to type instead."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest of ``choices``, or all of them if none is close.

    Example:
        >>> did_you_mean("sofftriple", ["softtriple", "margin"]), did_you_mean("x", ["softtriple", "margin"])
        ("did you mean 'softtriple'?", 'choose from softtriple, margin')
    """
    known = list(choices)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_few(entries: Iterable[object], separator: str = ", ") -> str:
    """The first three entries as text, and an ellipsis if there are more.

    Example:
        >>> first_few("abcd"), first_few([1, 2])
        ('a, b, c, …', '1, 2')
    """
    shown = [str(entry) for entry in entries]
    return separator.join(shown if len(shown) <= 3 else [*shown[:3], "…"])


def format_shape(shape: Iterable[int]) -> str:
    """A shape such as (4, 8, 3) as "4×8×3"."""
    return "×".join(map(str, shape))


def escaped(text: str, keep: str = "") -> str:
    """``text`` with unprintable characters escaped, which file names may contain and a terminal would interpret.

    Example:
        >>> print(escaped("photo\\x1b[31m.jpg"))
        photo\\x1b[31m.jpg
    """
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def counted(number: int, noun: str) -> str:
    """``number`` followed by ``noun`` in the singular or plural.

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
