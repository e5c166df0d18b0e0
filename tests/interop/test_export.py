"""Exported encoders: the same vectors from one file, without softtriple."""

import itertools
import json
import re
import subprocess
import sys
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from softtriple.errors import UserError
from softtriple.interop import export
from softtriple.interop.export import FORMATS, OPSET, describe, export_encoder
from softtriple.losses import SoftTripleLoss
from softtriple.losses.pairs import SemiHardTripletLoss
from softtriple.models import Encoder

# Of the loader, here and at every user's.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def _unchecked() -> Iterator[None]:
    """As users run it: exporters follow sizes through the code and stumble over the annotation checks of the tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


SMALL: dict[str, dict[str, Any]] = {
    "conv-small": {"input_size": 20, "width": 8},
    "linear": {"in_features": 5},
    "mlp": {"in_features": 5, "hidden": (8, 6)},
    "text": {"buckets": 100, "width": 8},
}
LARGE: dict[str, dict[str, Any]] = {
    "bn-inception": {"input_size": 64, "pretrained": False},
    "efficientnet-lite0": {"input_size": 64, "pretrained": False},
}
TEXTS = ["how do I reset it?", "", "Straße and ﬁsh, twice: fish"]


def build(name: str, **more: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder.from_backbone(name, **({"dim": 4} | (SMALL | LARGE)[name] | more)).eval()


def items_for(encoder: Encoder) -> tuple[Any, np.ndarray]:
    """Items for ``embed``, and the same as an exported file takes them, by its description alone."""
    random = np.random.default_rng(0)
    taken = describe(encoder)["input"]
    match taken["name"]:
        case "features":
            rows = random.standard_normal((3, taken["shape"][1])).astype(np.float32)
            return rows, rows
        case "images":
            pictures = random.integers(0, 256, (3, 90, 70, 3), dtype=np.uint8)
            return pictures, np.stack([cropped(Image.fromarray(picture), taken) for picture in pictures])
        case _:
            return TEXTS, hashed(TEXTS, taken["buckets"])


def cropped(image: Image.Image, taken: dict[str, Any]) -> np.ndarray:
    size = taken["shape"][1]
    scale = taken["resize"] / min(image.size)
    image = image.resize((int(scale * image.width), int(scale * image.height)), Image.Resampling.BILINEAR)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def hashed(texts: list[str], buckets: int) -> np.ndarray:
    rows = []
    for text in texts:
        found = re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text[:4096]).casefold())
        words = [f"<{word}>" for word in found]
        grams = [g for w in words for g in (w, *(w[i : i + n] for n in (3, 4, 5) for i in range(len(w) - n + 1)))]
        grams += [f"{a} {b}" for a, b in itertools.pairwise(words)]
        rows.append([zlib.crc32(gram.encode()) % buckets + 1 for gram in grams])
    length = max(map(len, rows))
    return np.array([row + [0] * (length - len(row)) for row in rows])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every small backbone in every format: BACKBONE.onnx, .pt and .pt2."""
    folder = tmp_path_factory.mktemp("exported")
    for name in SMALL:
        for format, known in FORMATS.items():
            export_encoder(build(name), folder / f"{name}{known.suffix}", format)
    return folder


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("format", FORMATS)
def test_every_small_backbone(name: str, format: str, files: Path) -> None:
    check(build(name), format, files / f"{name}{FORMATS[format].suffix}")


# What a user without softtriple writes.
WITHOUT = """
import json, sys
from pathlib import Path
sys.modules["softtriple"] = None
import numpy as np, onnxruntime, torch
for path in sorted(Path(sys.argv[1]).glob("*.*")):
    items = np.load(Path(sys.argv[2]) / f"{path.stem}.npy")
    extra = {"softtriple.json": ""}
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path)
        told = session.get_modelmeta().custom_metadata_map["softtriple"]
        (vectors,) = session.run(["vectors"], {json.loads(told)["input"]["name"]: items})
    elif path.suffix == ".pt2":
        vectors = torch.export.load(path, extra_files=extra).module()(torch.from_numpy(items)).numpy()
        told = extra["softtriple.json"]
    else:
        vectors = torch.jit.load(path, _extra_files=extra)(torch.from_numpy(items)).numpy()
        told = extra["softtriple.json"]
    told = told if isinstance(told, str) else told.decode()
    print(json.dumps({"file": path.name, "told": json.loads(told), "vectors": vectors.tolist()}))
"""


def test_the_files_need_no_softtriple(files: Path, tmp_path: Path) -> None:
    encoders = {name: build(name) for name in SMALL}
    for name, encoder in encoders.items():
        np.save(tmp_path / f"{name}.npy", items_for(encoder)[1])
    command = [sys.executable, "-c", WITHOUT, str(files), str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(SMALL) * len(FORMATS)
    for answer in map(json.loads, lines):
        encoder = encoders[Path(answer["file"]).stem]
        assert answer["told"] == describe(encoder)
        np.testing.assert_allclose(answer["vectors"], encoder.embed(items_for(encoder)[0]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("format", FORMATS)
def test_every_large_backbone(name: str, format: str, tmp_path: Path) -> None:
    encoder, file = build(name), tmp_path / f"encoder{FORMATS[format].suffix}"
    export_encoder(encoder, file, format)
    check(encoder, format, file)


def test_what_is_told(tmp_path: Path) -> None:
    encoder = build("conv-small", dim=6, layer_norm=True, pooling="average+max")
    encoder.class_names = ("a", "ß")
    made = export_encoder(encoder, tmp_path / "encoder.onnx")
    assert made.difference <= 1e-5
    assert made.opset == OPSET
    assert made.description["class_names"] == ["a", "ß"]
    assert made.description["output"]["shape"] == ["batch", 6]
    assert list(tmp_path.iterdir()) == [made.file]
    check(encoder, "onnx", made.file)
    (opset,) = onnx.load(made.file).opset_import
    assert opset.version == OPSET


def check(encoder: Encoder, format: str, file: Path) -> None:
    items, rows = items_for(encoder)
    found = FORMATS[format].run(file, torch.from_numpy(rows))
    np.testing.assert_allclose(found, encoder.embed(items), atol=1e-5)


@pytest.mark.parametrize("format", FORMATS)
def test_centres_inside_classify(format: str, tmp_path: Path) -> None:
    encoder, loss = build("mlp"), SoftTripleLoss(3, 4, 2)
    encoder.class_names = ("a", "b", "c")
    file = tmp_path / f"classifier{FORMATS[format].suffix}"
    made = export_encoder(encoder, file, format, loss=loss)
    assert made.description["classes"]["shape"] == ["batch", 3]
    items, rows = items_for(encoder)
    vectors = encoder.embed(items)
    found = FORMATS[format].run(file, torch.from_numpy(rows))
    expected = loss.similarities(torch.from_numpy(vectors)).detach().numpy()
    np.testing.assert_allclose(found, np.concatenate([vectors, expected], axis=1), atol=1e-5)
    if format == "onnx":
        assert [output.name for output in onnx.load(file).graph.output] == ["vectors", "similarities"]
    with pytest.raises(UserError, match="SemiHardTripletLoss has no centres"):
        export_encoder(encoder, tmp_path / "other.pt", "torchscript", loss=SemiHardTripletLoss(3, 4))


def test_eight_bit_weights(tmp_path: Path) -> None:
    encoder = build("conv-small")
    full, small = (export_encoder(encoder, tmp_path / f"{int8}.onnx", int8=int8) for int8 in (False, True))
    assert small.file.stat().st_size < full.file.stat().st_size
    assert small.description == {**full.description, "weights": "int8"}
    items, rows = items_for(encoder)
    found = FORMATS["onnx"].run(small.file, torch.from_numpy(rows))
    cosines = (found * encoder.embed(items)).sum(axis=1)
    assert 0.99 < cosines.min() < 1 - 1e-9
    with pytest.raises(UserError, match="--int8"):
        export_encoder(encoder, tmp_path / "encoder.pt", "torchscript", int8=True)


def test_the_encoder_stays_as_it_was(tmp_path: Path) -> None:
    encoder = build("conv-small").train()
    export_encoder(encoder, tmp_path / "encoder.pt", "torchscript")
    assert encoder.training
    weight = encoder.backbone.get_submodule("block2")[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "encoder.pt"
    file.write_text("what was there")
    wrong = FORMATS["torchscript"]._replace(run=lambda path, items: np.zeros((len(items), 4)))
    monkeypatch.setitem(export.FORMATS, "torchscript", wrong)
    with pytest.raises(ValueError, match=r"encoder\.pt .* by 0\.\d+"):
        export_encoder(build("linear"), file, "torchscript", force=True)
    assert file.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_exported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("operator ::bend is not known\nand much more")

    monkeypatch.setitem(export.FORMATS, "onnx", FORMATS["onnx"]._replace(write=refuse))
    with pytest.raises(ValueError, match=r"linear as onnx \(operator ::bend is not known\)"):
        export_encoder(build("linear"), tmp_path / "encoder.onnx")
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "encoder.pt"
    file.write_text("another model")
    with pytest.raises(UserError, match=r"encoder\.pt .*--force"):
        export_encoder(build("linear"), file, "torchscript")
    assert file.read_text() == "another model"
    export_encoder(build("linear"), file, "torchscript", force=True)
    check(build("linear"), "torchscript", file)


@pytest.mark.parametrize(
    ("file", "format", "message"),
    [
        ("a.onnx", "tflite", "'tflite'; choose from onnx, torchscript, torch-export"),
        ("a.onnx", "torchscrpt", "did you mean 'torchscript'"),
        ("a.pt", "onnx", r"a\.pt: .* a\.onnx"),
        ("a", "torch-export", r"a: .* a\.pt2"),
    ],
)
def test_mistakes_are_named(file: str, format: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export_encoder(build("linear"), Path(file), format)


def test_without_onnx_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"onnxruntime: pip install 'softtriple\[onnx\]'"):
        export_encoder(build("linear"), tmp_path / "encoder.onnx")
