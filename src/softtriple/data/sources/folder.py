"""Images in folders: one sub-folder a class, or train/ and test/ of those."""

import os
from pathlib import Path

import numpy as np

from softtriple.data.benchmark import (
    Benchmark,
    Division,
    ImageFiles,
    OnError,
    Split,
    divide,
    divided,
    index_names,
    name_order,
    refuse_division,
)

# What Pillow reads and people keep photographs in. Anything else in a class folder is left out, and counted.
IMAGE_SUFFIXES = frozenset(
    (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)


def load_folder(
    path: Path,
    *,
    split: str | None = None,
    test_share: float | None = None,
    seed: int | None = None,
    on_error: OnError = "stop",
) -> Benchmark:
    """Load a folder of class folders, or of train/ and test/ with class folders in each.

    A class folder without images, or one that cannot be listed, is an error; ``on_error="skip"`` leaves it out and
    says so.
    """
    if has_parts(path):
        refuse_division(f"{path} (train/ and test/)", split, test_share, seed)
        train_files, train_names, train_notes = list_images(path / "train", on_error)
        test_files, test_names, test_notes = list_images(path / "test", on_error)
        files, notes = train_files + test_files, train_notes + test_notes
        labels, class_names = index_names(train_names + test_names)
        rows, shared = np.arange(len(labels)), len(set(train_names) & set(test_names))
        note = f"split by the folders train/ and test/, which have {shared} classes in common"
        division = Division(rows[: len(train_files)], rows[len(train_files) :], note)
    else:
        files, names, notes = list_images(path, on_error)
        labels, class_names = index_names(names)
        division = divide(labels, split, test_share, seed)
    return divided(path.resolve().name, Split(ImageFiles(tuple(files)), labels), class_names, division, notes)


def has_parts(path: Path) -> bool:
    """Whether ``path`` holds train/ and test/ folders rather than classes."""
    return (path / "train").is_dir() and (path / "test").is_dir()


def list_images(root: Path, on_error: OnError) -> tuple[list[str], list[str], list[str]]:
    """Paths, class names and notes of the images in the class folders of ``root``, in name order."""
    folders = {
        entry.name: entry.path for entry in os.scandir(root) if _is_folder(entry) and not entry.name.startswith(".")
    }
    if not folders:
        raise ValueError(f"{root}: no class folders; a folder of images needs one sub-folder for each class")
    paths: list[str] = []
    names: list[str] = []
    empty: list[str] = []
    others = 0
    notes: list[str] = []
    for name in name_order(folders):
        try:
            name.encode()
            entries = [entry for entry in os.scandir(folders[name]) if not entry.name.startswith(".")]
        except (UnicodeEncodeError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name is not UTF-8"
            if on_error == "stop":
                raise ValueError(f"{folders[name]!r}: not a class folder that can be read ({reason})") from error
            notes.append(f"{folders[name]!r}: left out, not a class folder that can be read ({reason})")
            continue
        files = sorted(entry.path for entry in entries)
        lost = [entry.path for entry in entries if entry.is_symlink() and not Path(entry.path).exists()]
        if lost and on_error == "stop":
            raise ValueError(f"{lost[0]!r}: a link that leads nowhere, or in a circle")
        images = [file for file in files if Path(file).suffix.lower() in IMAGE_SUFFIXES]
        others += len(files) - len(images)
        paths += images
        names += [name] * len(images)
        if not images:
            empty.append(name)
    if others:
        notes.append(f"{root}: {others} files that are not images were left out")
    if empty:
        which = f"{len(empty)} class folders hold no images ({', '.join(empty[:3])}{', …' if len(empty) > 3 else ''})"
        if on_error == "stop" or not paths:
            raise ValueError(f"{root}: {which}; class folders hold images directly, remove those that do not")
        notes.append(f"{root}: {which} and were left out")
    return paths, names, notes


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle; one that leads nowhere is no folder either
        return False
