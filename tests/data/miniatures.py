"""Every kind of data in a few files: what the loaders read, written small."""

import csv
import struct
import zipfile
import zlib
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from scipy.io import savemat


def write_image(path: Path, seed: int = 0, size: tuple[int, int] = (40, 36)) -> None:
    """A picture of noise, different for each seed; size is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, size=(size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def tiff(*, tile: tuple[int, int] | None = None, rows_per_strip: int = 8, kind: int = 4, big: bool = False) -> bytes:
    """A grey TIFF of 8×8 pixels, deflated; the tags of sizes have the type ``kind`` (4 is LONG)."""
    data = zlib.compress(bytes(64 if tile is None else tile[0] * tile[1]))
    tags = [(256, 4, 8), (257, 4, 8), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    start = 16 if big else 8
    if tile is None:
        tags += [(273, 4, start), (278, kind, rows_per_strip), (279, 4, len(data))]
    else:
        tags += [(322, kind, tile[0]), (323, kind, tile[1]), (324, 4, start), (325, 4, len(data))]
    directory = start + len(data)
    if big:
        head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, directory) + data + struct.pack("<Q", len(tags))
        return head + b"".join(struct.pack("<HHQQ", tag, kind, 1, value) for tag, kind, value in tags) + bytes(8)
    head = struct.pack("<2sHL", b"II", 42, directory) + data + struct.pack("<H", len(tags))
    return head + b"".join(struct.pack("<HHLL", tag, kind, 1, value) for tag, kind, value in tags) + bytes(4)


def class_folders(root: Path, classes: int = 4, images: int = 3, first: int = 0) -> Path:
    for c in range(first, first + classes):
        for i in range(images):
            write_image(root / f"class{c}" / f"{i}.png", seed=100 * c + i)
    return root


def train_test_folders(root: Path) -> Path:
    class_folders(root / "train", classes=3)
    class_folders(root / "test", classes=2, first=3)
    return root


def csv_table(root: Path, name: str = "table.csv", header: tuple[str, ...] = ("path", "label")) -> Path:
    class_folders(root)
    with (root / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows((f"class{c}/{i}.png", f"class{c}") for c in range(4) for i in range(3))
    return root / name


def text_table(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    texts = [f"text {i} about topic {i % 4}" for i in range(12)]
    topics = [f"topic {i % 4}" for i in range(12)]
    pq.write_table(pa.table({"text": texts, "label": topics}), root / "texts.parquet")
    return root / "texts.parquet"


def vector_npz(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    vectors = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    np.savez(root / "vectors.npz", vectors=vectors, labels=np.arange(12) % 4)
    return root / "vectors.npz"


def cub(root: Path) -> Path:
    """Four classes of three birds."""
    names = [f"{c + 1:03}.Bird_{c}" for c in range(4)]
    files = [(c, f"{names[c]}/bird_{i}.jpg") for c in range(4) for i in range(3)]
    for number, (_, file) in enumerate(files):
        write_image(root / "images" / file, seed=number)
    _lines(root / "classes.txt", (f"{c + 1} {name}" for c, name in enumerate(names)))
    _lines(root / "images.txt", (f"{n + 1} {file}" for n, (_, file) in enumerate(files)))
    _lines(root / "image_class_labels.txt", (f"{n + 1} {c + 1}" for n, (c, _) in enumerate(files)))
    return root


def cars_mat(root: Path) -> Path:
    """Four classes of three cars with the annotations of Matlab."""
    fields = [("relative_im_path", object), ("class", object), ("test", object)]
    rows = [(f"car_ims/{n:06}.jpg", n // 3 + 1, n % 2) for n in range(12)]
    for n, (file, _, _) in enumerate(rows):
        write_image(root / file, seed=n)
    names = np.array([f"Car {c}" for c in range(4)], dtype=object)
    savemat(root / "cars_annos.mat", {"annotations": np.array(rows, dtype=fields), "class_names": names})
    return root


def cars_folders(root: Path) -> Path:
    """The same number of cars as class folders, divided for classification: every class is in both parts."""
    class_folders(root / "train", images=2)
    class_folders(root / "test", images=1)
    return root


def sop(root: Path) -> Path:
    """Three products to train on and two to test on, two views of each."""
    for part, products in (("train", range(1, 4)), ("test", range(4, 6))):
        rows = [(product, f"chair_final/{product}00_{view}.JPG") for product in products for view in range(2)]
        for number, (_, file) in enumerate(rows):
            write_image((root / file).with_suffix(".jpg"), seed=number)
            (root / file).with_suffix(".jpg").rename(root / file)
        _lines(
            root / f"Ebay_{part}.txt",
            ["image_id class_id super_class_id path", *(f"{n} {p} 1 {file}" for n, (p, file) in enumerate(rows))],
        )
    return root


def inshop(root: Path) -> Path:
    """Three garments to train on; two with a query and two gallery images each."""
    rows = [(f"img/MEN/id_{c}/{i}.jpg", f"id_{c}", "train") for c in range(3) for i in range(2)]
    rows += [(f"img/MEN/id_{c}/{i}.jpg", f"id_{c}", "gallery" if i else "query") for c in (3, 4) for i in range(3)]
    for number, (file, _, _) in enumerate(rows):
        write_image(root / file, seed=number)
    _lines(
        root / "Eval" / "list_eval_partition.txt",
        [str(len(rows)), "image_name item_id evaluation_status", *("  ".join(row) for row in rows)],
    )
    return root


def omniglot(root: Path) -> Path:
    """Two alphabets of two characters in each archive, three drawings a character."""
    root.mkdir(parents=True, exist_ok=True)
    for part, alphabets in (("images_background", ("Greek", "Latin")), ("images_evaluation", ("Gurmukhi", "Kannada"))):
        with zipfile.ZipFile(root / f"{part}.zip", "w") as archive:
            for alphabet in alphabets:
                for character in range(2):
                    for drawer in range(3):
                        name = f"{part}/{alphabet}/character{character:02}/000{character}_{drawer:02}.png"
                        archive.writestr(name, _drawing(f"{alphabet}{character}{drawer}"))
    return root


def _drawing(seed: str) -> bytes:
    """Black ink on white, one bit a pixel: a bar whose height depends on the seed."""
    pixels = np.ones((105, 105), dtype=bool)
    pixels[10 : 20 + sum(seed.encode()) % 80, 50:55] = False
    content = BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


def _lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
