"""Images in folders: one folder per class, or train/ and test/ (or val/) with such folders.

With split="none" a folder of images without class folders and a single image file work too; their class is the name
of the folder that contains them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.data.benchmark import Benchmark, ImageFiles, OnError, Split
from softtriple.data.images import IMAGE_SUFFIXES, ImageError, missing_plugin
from softtriple.data.splitting import (
    Division,
    Splitting,
    check_no_division,
    divide,
    divided,
    index_names,
    name_order,
)
from softtriple.errors import UserError, counted, first_few

TEST_NAMES = ("test", "val", "valid", "validation")
SKIP = "To leave them out: --on-error skip"


class Listing(NamedTuple):
    """The images in some folders: paths, class names, and what was left out."""

    paths: list[str]
    names: list[str]
    skipped: list[str]


def load_folder(path: Path, *, splitting: Splitting, on_error: OnError = "stop") -> Benchmark:
    """Load class folders, or train/ and test/ (or val/) with class folders.

    A class folder that has no images or cannot be read is an error; ``on_error="skip"`` leaves it out.
    """
    if parts := find_parts(path):
        where = " and ".join(f"{part.name}/" for part in parts)
        check_no_division(f"{path} ({where})", *splitting)
        train, test = (list_images(part, on_error) for part in parts)
        listing = Listing(*(one + other for one, other in zip(train, test, strict=True)))
        unused = [path / name for name in TEST_NAMES if (path / name).is_dir() and path / name not in parts]
        listing.skipped.extend(f"{folder}: not used, {parts[1].name}/ is the test set" for folder in unused)
        shared = len(set(train.names) & set(test.names))
        rows = np.arange(len(listing.paths))
        note = f"split by the folders {where}, which have {counted(shared, 'class')} in common"
        division = Division(rows[: len(train.paths)], rows[len(train.paths) :], note)
        labels, class_names = index_names(listing.names)
    else:
        listing = list_images(path, on_error, unlabelled=splitting.split == "none")
        labels, class_names = index_names(listing.names)
        division = divide(labels, *splitting)
    everything = Split(ImageFiles(tuple(listing.paths)), labels)
    return divided(path.resolve().name, everything, class_names, division, skipped=listing.skipped)


def find_parts(path: Path) -> tuple[Path, Path] | None:
    """The folders train/ and test/ (or val/, valid/, validation/) in ``path``, or None if there are none."""
    tests = [path / name for name in TEST_NAMES if (path / name).is_dir()]
    return (path / "train", tests[0]) if tests and (path / "train").is_dir() else None


def list_images(root: Path, on_error: OnError, *, unlabelled: bool = False) -> Listing:
    """The images in the class folders of ``root``, in name order.

    With ``unlabelled`` and no class folders, the images in ``root`` itself, or ``root`` if it is an image.
    """
    if root.is_file():
        if not unlabelled:
            raise UserError(f"{root}: a single image cannot be trained on; expected a folder with a folder per class")
        return Listing([str(root)], [root.parent.name], [])
    entries = _visible(root)
    folders = {entry.name: entry.path for entry in entries if _is_folder(entry)}
    loose = sorted(entry.path for entry in entries if not _is_folder(entry))
    if not folders:
        if not unlabelled:
            raise UserError(f"{root}: no class folders; expected one folder of images per class")
        images, skipped = _choose(loose, on_error)
        if not images:
            raise UserError(f"{root}: no images")
        return Listing(images, [root.resolve().name] * len(images), skipped)

    paths: list[str] = []
    names: list[str] = []
    skipped = [str(ImageError(file, "not in a class folder")) for file in loose]
    empty: list[str] = []
    for name in name_order(folders):
        try:
            name.encode()
            files = sorted(entry.path for entry in _visible(folders[name]))
        except (UnicodeEncodeError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name is not valid UTF-8"
            skipped.append(_skip(f"{folders[name]!r}: cannot read this class folder ({reason})", on_error))
            continue
        images, others = _choose(files, on_error)
        paths += images
        names += [name] * len(images)
        skipped += others
        if not images:
            empty.append(name)
    if empty and (on_error == "stop" or not paths):
        raise UserError(f"{root}: no images in {counted(len(empty), 'class folder')} ({first_few(empty)}). {SKIP}")
    skipped += [f"{folders[name]}: a class folder without images" for name in empty]
    return Listing(paths, names, skipped)


def _choose(files: Sequence[str], on_error: OnError) -> tuple[list[str], list[str]]:
    """The images among ``files``, and a message for each of the others."""
    images: list[str] = []
    skipped: list[str] = []
    for file in files:
        if Path(file).is_symlink() and not _exists(file):
            skipped.append(_skip(f"{file!r}: a broken link", on_error))
        elif Path(file).suffix.lower() not in IMAGE_SUFFIXES:
            skipped.append(str(ImageError(file, "not an image")))
        elif advice := missing_plugin(file):
            skipped.append(_skip(str(ImageError(file, advice)), on_error))
        else:
            images.append(file)
    return images, skipped


def _skip(fault: str, on_error: OnError) -> str:
    """``fault``, or UserError if ``on_error`` is "stop"."""
    if on_error == "stop":
        raise UserError(f"{fault}. {SKIP}")
    return fault


def _visible(root: str | Path) -> "list[os.DirEntry[str]]":
    return [entry for entry in os.scandir(root) if not entry.name.startswith(".")]


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circular link
        return False


def _exists(file: str) -> bool:
    try:
        return Path(file).exists()
    except OSError:  # a circular link
        return False
