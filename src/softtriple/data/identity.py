"""The ids of items, by which a store and a table of labels know them."""

import hashlib
from collections import Counter
from pathlib import Path

from softtriple.data.benchmark import ImageArray, ImageFiles, ImageList, Items, Texts
from softtriple.errors import UserError


def item_ids(items: Items, copies: Counter[str]) -> list[str]:
    """The path of a file, the hash of any other content; a second copy of it ends in #2, and so on.

    ``copies`` counts those that came before.
    """
    match items:
        case ImageFiles(paths):
            names = [absolute_path(path) for path in paths]
        case Texts(values):
            names = [_hash(value.encode()) for value in values]
        case ImageArray(array) | ImageList(array):
            names = [_hash(picture.tobytes()) for picture in array]
        case _:
            names = [_hash(vector.tobytes()) for vector in items.values]
    ids = []
    for name in names:
        copies[name] += 1
        ids.append(name if copies[name] == 1 else f"{name}#{copies[name]}")
    return ids


def absolute_path(path: str) -> str:
    """The absolute path, which does not depend on the working directory."""
    whole = str(Path(path).absolute())  # resolve() raises on a loop of links
    try:
        whole.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{path!r}: the name is not Unicode, and a store can only hold Unicode; rename the file"
        ) from error
    return whole


def _hash(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()[:32]}"
