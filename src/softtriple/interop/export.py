"""Export an encoder to a single file that runs without softtriple: ONNX, TorchScript or torch.export.

The input is 8-bit RGB images, with channel order, scale and mean inside the graph; vectors; or rows of token ids. The
remaining preprocessing is described in the file as JSON under the key "softtriple": in metadata_props of ONNX, in an
extra file of the other two.
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

from softtriple.errors import UserError, did_you_mean, first_line
from softtriple.files import atomic_write
from softtriple.interop.quantize import quantize_weights
from softtriple.losses import Loss
from softtriple.losses.centers import CenterLoss
from softtriple.models import Encoder, Preprocess
from softtriple.models.backbones.text import LETTERS, MOST_CHARACTERS, HashedNgrams

OPSET = 18
TOLERANCE = 1e-4  # largest difference from the encoder in any value of an embedding
INT8_TOLERANCE = 0.1  # with 8-bit weights
KEY = "softtriple"
_EXTRA_FILE = f"{KEY}.json"

_TEXTS = ("how do I reset my PIN?", "where is my order", "please cancel the subscription that I took out by mistake")


class Exported(NamedTuple):
    """An exported file: its format, the largest difference from the encoder, and the description in it."""

    file: Path
    format: str
    opset: int | None
    difference: float
    description: dict[str, Any]


class _Graph(nn.Module):
    """The encoder including the normalisation of images: takes cropped images, vectors, or rows of token ids.

    With a ``loss``, whose centres become part of the graph, it also returns the similarity to each class.
    """

    def __init__(self, encoder: Encoder, loss: CenterLoss | None) -> None:
        super().__init__()
        self.encoder, self.loss = encoder, loss

    def forward(
        self, items: Num[Tensor, "batch ..."]
    ) -> Float[Tensor, "batch dim"] | tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch classes"]]:
        inputs = self.encoder.prepare(items) if self.encoder.takes == "image" else items
        vectors: Tensor = self.encoder(inputs)
        return vectors if self.loss is None else (vectors, self.loss.compare(vectors, self.loss.centers))


class _Traced(NamedTuple):
    """The graph, two items to trace it with, the names of input and outputs, dynamic axes, the description as JSON."""

    graph: _Graph
    items: Num[Tensor, "batch ..."]
    name: str
    outputs: list[str]
    dynamic: dict[int, Any]
    description: str


def _write_onnx(traced: _Traced, path: Path) -> None:
    program = torch.onnx.export(
        traced.graph,
        (traced.items,),
        dynamo=True,
        opset_version=OPSET,
        input_names=[traced.name],
        output_names=traced.outputs,
        dynamic_shapes=(traced.dynamic,),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props[KEY] = traced.description
    program.save(str(path), external_data=False)


def _run_onnx(path: Path, items: Num[Tensor, "batch ..."]) -> Float[np.ndarray, "batch values"]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate(session.run(None, {session.get_inputs()[0].name: items.numpy()}), axis=1)


def _write_torchscript(traced: _Traced, path: Path) -> None:
    script = torch.jit.trace(traced.graph, traced.items, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(script, str(path), _extra_files={_EXTRA_FILE: traced.description})


def _run_torchscript(path: Path, items: Num[Tensor, "batch ..."]) -> Float[np.ndarray, "batch values"]:
    return _side_by_side(torch.jit.load(str(path))(items))  # type: ignore[no-untyped-call]


def _write_torch_export(traced: _Traced, path: Path) -> None:
    program = torch.export.export(traced.graph, (traced.items,), dynamic_shapes=(traced.dynamic,))
    torch.export.save(program, path, extra_files={_EXTRA_FILE: traced.description})


def _run_torch_export(path: Path, items: Num[Tensor, "batch ..."]) -> Float[np.ndarray, "batch values"]:
    return _side_by_side(torch.export.load(path).module()(items))


def _side_by_side(outputs: Tensor | tuple[Tensor, ...]) -> Float[np.ndarray, "batch values"]:
    return (outputs if isinstance(outputs, Tensor) else torch.cat(outputs, dim=1)).numpy()


class _Format(NamedTuple):
    """The suffix of a format, and how to write and run a file; ``run`` returns the outputs side by side."""

    suffix: str
    write: Callable[[_Traced, Path], None]
    run: Callable[[Path, Tensor], np.ndarray]


FORMATS: dict[str, _Format] = {
    "onnx": _Format(".onnx", _write_onnx, _run_onnx),
    "torchscript": _Format(".pt", _write_torchscript, _run_torchscript),
    "torch-export": _Format(".pt2", _write_torch_export, _run_torch_export),
}


@torch.no_grad()
def export_encoder(
    encoder: Encoder,
    path: Path,
    format: str = "onnx",
    *,
    loss: Loss | None = None,
    int8: bool = False,
    force: bool = False,
) -> Exported:
    """Export ``encoder`` to ``path``, and check that the file gives the same embeddings to 1e-4 at several batch sizes.

    With the ``loss`` that it was trained with, the file also returns the similarity to each class of
    ``encoder.class_names``. ``int8`` stores weights as 8-bit integers, with a tolerance of 0.1. An existing file is
    only overwritten with ``force``, and only if export and check succeed.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}; {did_you_mean(format, FORMATS)}")
    chosen = FORMATS[format]
    if path.suffix != chosen.suffix:
        raise UserError(f"{path}: --format {format} writes {chosen.suffix} files, such as {path.stem}{chosen.suffix}")
    if path.exists() and not force:
        raise UserError(f"{path} already exists. Use --force to overwrite it, or choose another --out")
    if int8 and format != "onnx":
        raise UserError(f"8-bit weights are for ONNX files, not for {format}; leave out --int8")
    if format == "onnx":
        _require_onnx()
    if loss is not None and not isinstance(loss, CenterLoss):
        raise UserError(f"{type(loss).__name__} has no centres to classify by; export the encoder alone")
    loss = None if loss is None else copy.deepcopy(loss).to("cpu").requires_grad_(False)
    encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
    encoder.to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # required by torch.export
    description = describe(encoder, classifies=loss is not None) | ({"weights": "int8"} if int8 else {})
    taken = description["input"]
    dynamic = {axis: torch.export.Dim(name) for axis, name in enumerate(taken["shape"]) if isinstance(name, str)}
    text = json.dumps(description, ensure_ascii=False)
    outputs = [description[name]["name"] for name in ("output", "classes") if name in description]
    traced = _Traced(_Graph(encoder, loss).eval(), _items(encoder, 2), taken["name"], outputs, dynamic, text)
    with atomic_write(path) as temporary:
        try:
            with _quiet():
                chosen.write(traced, temporary)
                if int8:
                    quantize_weights(temporary)
                # Check other batch sizes than the traced one, which the graph may have hard-coded.
                batches = [_items(encoder, size) for size in (1, 3)]
                errors = [chosen.run(temporary, batch) - _side_by_side(traced.graph(batch)) for batch in batches]
                difference = max(float(np.abs(error).max()) for error in errors)
        except OSError:
            raise
        except Exception as error:  # exporters and runtimes raise many types
            raise UserError(
                f"cannot export {encoder.config.backbone} as {format} ({first_line(error)}); try another --format"
            ) from error
        if not difference <= (tolerance := INT8_TOLERANCE if int8 else TOLERANCE):
            raise UserError(
                f"{path} was not written: its embeddings differ from the encoder's by {difference:.2g}, more than "
                f"{tolerance:g}. {'Leave out --int8' if int8 else 'Try another --format'}"
            )
    return Exported(path, format, OPSET if format == "onnx" else None, difference, description)


def describe(encoder: Encoder, *, classifies: bool = False) -> dict[str, Any]:
    """Everything needed to use an exported encoder: input, preprocessing and output."""
    classes = {
        "name": "similarities",
        "type": "float32",
        "shape": ["batch", len(encoder.class_names)],
        "meaning": "similarity to each class of class_names; the largest is the prediction",
    }
    return {
        "softtriple": importlib.metadata.version("softtriple"),
        "backbone": encoder.config.backbone,
        "input": _describe_input(encoder),
        "output": {
            "name": "vectors",
            "type": "float32",
            "shape": ["batch", encoder.dim],
            "meaning": "unit vectors: the dot product of two is their cosine similarity",
        },
        "class_names": list(encoder.class_names),
        **({"classes": classes} if classifies else {}),
    }


def _describe_input(encoder: Encoder) -> dict[str, Any]:
    preprocess = encoder.preprocess
    if preprocess is None:
        return {"name": "features", "type": "float32", "shape": ["batch", encoder.example().shape[1]]}
    if isinstance(preprocess, Preprocess):
        view = preprocess.eval_view
        return {
            "name": "images",
            "type": "uint8",
            "shape": ["batch", view.size, view.size, 3],
            "resize": view.resize,
            "meaning": f"RGB; resize the short side to {view.resize} pixels (bilinear, antialiased, the long side"
            f" rounded down), then crop the central {view.size}×{view.size} pixels",
        }
    rows = preprocess([_TEXTS[0]])
    example = {"text": _TEXTS[0], "row": rows[0].tolist()}
    if isinstance(preprocess, HashedNgrams):
        lengths = ", ".join(map(str, LETTERS))
        return {
            "name": "ngrams",
            "type": "int64",
            "shape": ["batch", "length"],
            "buckets": preprocess.buckets,
            "meaning": f"take the first {MOST_CHARACTERS} characters, normalise (NFKC) and case-fold; find words with"
            " \\w+|[^\\w\\s] and put each between < and >; list each word followed by its substrings of length"
            f" {lengths} (all of one length, then of the next), then each pair of adjacent words joined by a space;"
            " the number of an entry is the CRC-32 of its UTF-8 modulo buckets, plus 1; pad rows with 0",
            "example": example,
        }
    return {
        "name": "tokens",
        "type": "int64",
        "shape": ["batch", *rows.shape[1:-1], "length"],
        "tokenizer": encoder.config.backbone.removeprefix("st:"),
        "meaning": "input_ids and attention_mask of the tokenizer, stacked",
        "example": example,
    }


def _items(encoder: Encoder, count: int) -> Num[Tensor, "batch ..."]:
    """Example input of the graph: random images or vectors, or some texts."""
    generator = torch.Generator().manual_seed(count)
    if encoder.takes == "text":
        return encoder.prepare(list(_TEXTS[:count]))
    if isinstance(encoder.preprocess, Preprocess):
        size = encoder.preprocess.eval_view.size
        return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=generator)
    return torch.randn(count, encoder.example().shape[1], generator=generator)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"export to ONNX needs {error.name}: pip install 'softtriple[onnx]'") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of the exporters; the check at other batch sizes covers their warnings about traced sizes."""
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
