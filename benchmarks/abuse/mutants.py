"""Damaged and malicious files: seeded mutations of any bytes, images to mutate, and decompression bombs."""

import functools
import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

HEADER = 64


def mutant(content: bytes, generator: np.random.Generator) -> bytes:
    """``content`` with bits flipped, truncated, a changed header, a part repeated or missing, or noise appended."""
    data = bytearray(content)
    match int(generator.integers(7)):
        case 0:  # single bits
            for place in generator.integers(len(data), size=int(generator.integers(1, 17))):
                data[place] ^= 1 << int(generator.integers(8))
        case 1:
            del data[int(generator.integers(len(data))) :]
        case 2:  # the header, which holds sizes and types
            for place in generator.integers(min(HEADER, len(data)), size=int(generator.integers(1, 5))):
                data[place] = int(generator.integers(256))
        case 3:  # integers that decoders use as sizes
            place = int(generator.integers(max(1, len(data) - 4)))
            data[place : place + 4] = struct.pack(">I", int(generator.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF])))
        case 4:
            start, end = sorted(generator.integers(len(data) + 1, size=2).tolist())
            data[end:end] = data[start:end]
        case 5:
            start, end = sorted(generator.integers(len(data) + 1, size=2).tolist())
            del data[start:end]
        case _:
            data += generator.bytes(int(generator.integers(1, 2000)))
    return bytes(data)


@functools.cache
def pictures() -> dict[str, bytes]:
    """A small photo-like image in common and unusual variants of each format, by suffix."""
    generator = np.random.default_rng(5)
    pixels = np.cumsum(generator.normal(0, 6, (48, 56, 3)), axis=1)
    image = Image.fromarray(np.clip(pixels + 128, 0, 255).astype(np.uint8))
    made = {
        ".jpg": _saved(image, "JPEG", quality=80),
        ".progressive.jpg": _saved(image, "JPEG", progressive=True, exif=_exif()),
        ".png": _saved(image, "PNG"),
        ".palette.png": _saved(image.convert("P"), "PNG", transparency=3),
        ".webp": _saved(image, "WEBP"),
        ".lossless.webp": _saved(image.convert("RGBA"), "WEBP", lossless=True),
        ".gif": _saved(image, "GIF", save_all=True, append_images=[image.rotate(90)]),
        ".tif": _saved(image, "TIFF", compression="tiff_lzw"),
        ".bmp": _saved(image, "BMP"),
    }
    return made


@functools.cache
def bombs() -> dict[str, bytes]:
    """Small files that would decode to gigabytes, by name."""
    jpeg = bytearray(pictures()[".jpg"])
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65_500, 65_500)
    text = _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100_000_000), 9))
    small = pictures()[".png"]
    return {
        "wide.png": _png(30_000, 30_000),
        "declared.png": _png(0x7FFFFFFF, 0x7FFFFFFF, rows=10),
        "strip.png": _png(80_000_000, 1),
        "text.png": small[:33] + text + small[33:],
        "declared.jpg": bytes(jpeg),
        "declared.bmp": pictures()[".bmp"][:18] + struct.pack("<ii", 50_000, 50_000) + pictures()[".bmp"][26:],
    }


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _png(width: int, height: int, rows: int | None = None) -> bytes:
    """A black PNG with one bit per pixel, of which only ``rows`` rows are present."""
    line = bytes(1 + (width + 7) // 8) if rows is None else bytes(64)
    packer, packed = zlib.compressobj(9), []
    for _ in range(height if rows is None else rows):
        packed.append(packer.compress(line))
    content = b"".join([*packed, packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
