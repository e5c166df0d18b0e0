"""A trained encoder as one file that needs no softtriple: ONNX, TorchScript or torch.export.

The file takes images as 8-bit RGB, so that channel order, scale and mean are part of the graph and cannot be got wrong;
vectors as they are; texts as rows of numbers. What is left to do before is written inside the file, as JSON under the
key "softtriple": metadata_props of ONNX, an extra file of the other two.
"""

import copy
import importlib.metadata
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from softtriple.files import appearing_file
from softtriple.models import Encoder, Preprocess
from softtriple.models.backbones.text import LETTERS, MOST_CHARACTERS, HashedNgrams

OPSET = 18
TOLERANCE = 1e-4  # how much any number of a vector may differ from the encoder's
KEY = "softtriple"
_EXTRA_FILE = f"{KEY}.json"

_TEXTS = ("how do I reset my PIN?", "where is my order", "please cancel the subscription that I took out by mistake")


class Exported(NamedTuple):
    """What was written: the file, its format, the largest difference from the encoder, and what the file says."""

    file: Path
    format: str
    opset: int | None
    difference: float
    description: dict[str, Any]


class _Graph(nn.Module):
    """The encoder from images as they are cropped, vectors, or rows of numbers of texts."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, items: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        inputs = self.encoder.prepare(items) if self.encoder.takes == "image" else items
        vectors: Tensor = self.encoder(inputs)
        return vectors


class _Traced(NamedTuple):
    """All that a writer needs: the graph, two items to trace it with, their name and the axes that may grow."""

    graph: _Graph
    items: Num[Tensor, "batch ..."]
    name: str
    dynamic: dict[int, str]
    description: str


def _write_onnx(traced: _Traced, path: Path) -> None:
    axes = {axis: torch.export.Dim(name) for axis, name in traced.dynamic.items()}
    program = torch.onnx.export(
        traced.graph,
        (traced.items,),
        dynamo=True,
        opset_version=OPSET,
        input_names=[traced.name],
        output_names=["vectors"],
        dynamic_shapes=(axes,),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props[KEY] = traced.description
    program.save(str(path), external_data=False)


def _run_onnx(path: Path, items: Num[Tensor, "batch ..."]) -> Float[np.ndarray, "batch dim"]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (vectors,) = session.run(None, {session.get_inputs()[0].name: items.numpy()})
    return np.asarray(vectors)


def _write_torchscript(traced: _Traced, path: Path) -> None:
    script = torch.jit.trace(traced.graph, traced.items, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(script, str(path), _extra_files={_EXTRA_FILE: traced.description})


def _run_torchscript(path: Path, items: Num[Tensor, "batch ..."]) -> Float[np.ndarray, "batch dim"]:
    vectors: Tensor = torch.jit.load(str(path))(items)  # type: ignore[no-untyped-call]
    return vectors.numpy()


def _write_torch_export(traced: _Traced, path: Path) -> None:
    axes = {axis: torch.export.Dim(name) for axis, name in traced.dynamic.items()}
    program = torch.export.export(traced.graph, (traced.items,), dynamic_shapes=(axes,))
    torch.export.save(program, path, extra_files={_EXTRA_FILE: traced.description})


def _run_torch_export(path: Path, items: Num[Tensor, "batch ..."]) -> Float[np.ndarray, "batch dim"]:
    vectors: Tensor = torch.export.load(path).module()(items)
    return vectors.numpy()


class _Format(NamedTuple):
    """How the files of a format are called, written, and run by what users run them with."""

    suffix: str
    write: Callable[[_Traced, Path], None]
    run: Callable[[Path, Tensor], np.ndarray]


FORMATS: dict[str, _Format] = {
    "onnx": _Format(".onnx", _write_onnx, _run_onnx),
    "torchscript": _Format(".pt", _write_torchscript, _run_torchscript),
    "torch-export": _Format(".pt2", _write_torch_export, _run_torch_export),
}


@torch.no_grad()
def export_encoder(encoder: Encoder, path: Path, format: str = "onnx") -> Exported:
    """Write ``encoder`` to ``path``, after the file has given the encoder's vectors, to 1e-4, for batches of any size.

    If it does not, or cannot be made, the error says so and whatever was at ``path`` stays.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; choose from {', '.join(FORMATS)}")
    chosen = FORMATS[format]
    if path.suffix != chosen.suffix:
        raise ValueError(f"{path}: files of the format {format} are called {path.stem}{chosen.suffix}")
    if format == "onnx":
        _need_onnx()
    encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
    encoder.to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # torch.export wants it plain
    description = describe(encoder)
    dynamic = {axis: name for axis, name in enumerate(description["input"]["shape"]) if isinstance(name, str)}
    text = json.dumps(description, ensure_ascii=False)
    traced = _Traced(_Graph(encoder).eval(), _items(encoder, 2), description["input"]["name"], dynamic, text)
    with appearing_file(path) as temporary:
        try:
            with _quiet():
                chosen.write(traced, temporary)
                # Other sizes than the traced one: a graph that has kept that size does not pass.
                difference = max(_difference(chosen.run, temporary, traced.graph, _items(encoder, n)) for n in (1, 3))
        except OSError:
            raise
        except Exception as error:  # each exporter and each runtime has classes of its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"{encoder.config.backbone} cannot be exported as {format} ({reason})") from error
        if not difference <= TOLERANCE:
            raise ValueError(
                f"{path}: not written, because its vectors differ from the encoder's by {difference:.2g}, more than"
                f" {TOLERANCE:g}; choose another format"
            )
    return Exported(path, format, OPSET if format == "onnx" else None, difference, description)


def describe(encoder: Encoder) -> dict[str, Any]:
    """All that one needs to use an exported encoder: what goes in, what to do before, what comes out."""
    return {
        "softtriple": importlib.metadata.version("softtriple"),
        "backbone": encoder.config.backbone,
        "input": _describe_input(encoder),
        "output": {
            "name": "vectors",
            "type": "float32",
            "shape": ["batch", encoder.dim],
            "meaning": "of unit length, so that the dot product of two is their cosine similarity",
        },
        "class_names": list(encoder.class_names),
    }


def _describe_input(encoder: Encoder) -> dict[str, Any]:
    preprocess = encoder.preprocess
    if preprocess is None:
        return {"name": "features", "type": "float32", "shape": ["batch", encoder.example().shape[1]]}
    if isinstance(preprocess, Preprocess):
        return {
            "name": "images",
            "type": "uint8",
            "shape": ["batch", preprocess.size, preprocess.size, 3],
            "resize": preprocess.resize,
            "meaning": f"RGB; make the short side {preprocess.resize} pixels (bilinear, antialiased, the long side"
            f" rounded down), then take the {preprocess.size}×{preprocess.size} pixels in the middle",
        }
    rows = preprocess([_TEXTS[0]])
    example = {"text": _TEXTS[0], "row": rows[0].tolist()}
    if isinstance(preprocess, HashedNgrams):
        lengths = ", of ".join(map(str, LETTERS))
        return {
            "name": "ngrams",
            "type": "int64",
            "shape": ["batch", "length"],
            "buckets": preprocess.buckets,
            "meaning": f"take the first {MOST_CHARACTERS} characters, Unicode NFKC, case-folded; find words by"
            " \\w+|[^\\w\\s] and put each between < and >; for each word in turn: the word, then its substrings"
            f" of {lengths} characters;"
            " then each two neighbouring words with a space between; the number of each of these is the CRC-32 of its"
            " UTF-8 modulo buckets, plus 1; 0 fills rows up to one length",
            "example": example,
        }
    return {
        "name": "tokens",
        "type": "int64",
        "shape": ["batch", *rows.shape[1:-1], "length"],
        "tokenizer": encoder.config.backbone.removeprefix("st:"),
        "meaning": "input_ids and attention_mask of the tokenizer, one above the other",
        "example": example,
    }


def _items(encoder: Encoder, count: int) -> Num[Tensor, "batch ..."]:
    """Items as the graph takes them: random images or vectors, or some questions."""
    generator = torch.Generator().manual_seed(count)
    if encoder.takes == "text":
        return encoder.prepare(list(_TEXTS[:count]))
    if isinstance(encoder.preprocess, Preprocess):
        size = encoder.preprocess.size
        return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=generator)
    return torch.randn(count, encoder.example().shape[1], generator=generator)


def _difference(run: Callable[[Path, Tensor], np.ndarray], path: Path, graph: _Graph, items: Tensor) -> float:
    return float(np.abs(run(path, items) - graph(items).numpy()).max())


def _need_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export to ONNX needs {error.name}: pip install 'softtriple[onnx]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No word of the exporters about their own insides: deprecated ways, missing torchvision, constants not folded.

    That a trace fixes sizes is caught by the comparison, not by torch's warning about it.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "Converting a tensor to a Python boolean")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
