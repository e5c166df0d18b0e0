"""Vectors in files: .npz or .parquet with ``vectors`` and ``labels``, optionally ``paths`` and ``class_names``.

``embed`` writes this format, ``evaluate`` and ``train`` read it, and so does ``numpy.savez(file, vectors=...,
labels=...)``. In parquet, class names are stored as JSON in the schema metadata: there is one per class, not per row.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from softtriple.data.benchmark import Benchmark, Labels, MissingDataError, OnError, Split, Vectors
from softtriple.data.sources.folder import SKIP
from softtriple.data.splitting import Splitting, contiguous_labels, divide, divided, index_names
from softtriple.errors import UserError, counted, first_few, format_shape
from softtriple.files import atomic_write

ARRAYS = ("vectors", "labels", "class_names", "paths")
SUFFIXES = (".npz", ".parquet")
_CLASS_NAMES = b"softtriple.class_names"


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorFile:
    """The content of a file of vectors; ``labels`` index ``class_names`` if there are any.

    ``skipped`` counts the rows that were left out because they are not finite.
    """

    vectors: Float32[np.ndarray, "items dim"]
    labels: Labels
    class_names: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    skipped: int = 0


def read_vectors(path: Path, on_error: OnError = "stop") -> VectorFile:
    """Read a .npz or .parquet file of vectors.

    Labels may be integers or strings. A row with NaN or infinity is an error; ``on_error="skip"`` leaves it out.
    """
    if not path.is_file():
        raise MissingDataError(f"{path}: no such file")
    match path.suffix.lower():
        case ".npz":
            arrays = _read_npz(path)
        case ".parquet":
            arrays = _read_parquet(path)
        case other:
            raise UserError(
                f"{path}: cannot read vectors from {other or 'a file without suffix'}; expected .npz or .parquet"
            )
    for name in ("vectors", "labels"):
        if name not in arrays:
            raise UserError(f"{path}: no array {name!r}, only {', '.join(arrays) or 'arrays with other names'}")

    vectors = _checked_vectors(path, arrays["vectors"])
    labels, class_names = _checked_labels(path, arrays["labels"], arrays.get("class_names"))
    paths = tuple(str(value) for value in arrays["paths"]) if "paths" in arrays else None
    for name, length in (("labels", len(labels)), ("paths", len(vectors) if paths is None else len(paths))):
        if length != len(vectors):
            raise UserError(f"{path}: {counted(len(vectors), 'vector')} but {length} {name}")

    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        if on_error == "stop" or not finite.any():
            rows = f"rows {first_few(bad)}"
            raise UserError(f"{path}: {len(bad)} of {len(vectors)} vectors are not finite ({rows}). {SKIP}")
        vectors, labels = vectors[finite], labels[finite]
        paths = None if paths is None else tuple(np.array(paths, dtype=object)[finite])
    skipped = len(finite) - len(vectors)
    return VectorFile(vectors=vectors, labels=labels, class_names=class_names, paths=paths, skipped=skipped)


def write_vectors(path: Path, content: VectorFile) -> None:
    """Write ``content`` as .npz or .parquet, atomically."""
    if path.suffix not in SUFFIXES:
        suffix = path.suffix or "a file without suffix"
        raise UserError(f"{path}: cannot write vectors as {suffix}; expected .npz or .parquet")
    with atomic_write(path) as temporary:
        if path.suffix == ".npz":
            _write_npz(temporary, content)
        else:
            _write_parquet(temporary, content)


def load_vectors(path: Path, *, splitting: Splitting, on_error: OnError = "stop") -> Benchmark:
    """Load a file of vectors as a benchmark."""
    content = read_vectors(path, on_error)
    labels, class_names = content.labels, content.class_names
    if class_names is None:
        labels, numbers = contiguous_labels(labels)
        class_names = tuple(str(number) for number in numbers)
    division = divide(labels, *splitting)
    notes = [f"{path}: left out {counted(content.skipped, 'vector')} with NaN or infinity"] if content.skipped else []
    return divided(path.stem, Split(Vectors(content.vectors), labels), class_names, division, notes)


def open_parquet(path: Path) -> Any:
    """Open ``path`` as a pyarrow ParquetFile."""
    parquet = _import_parquet(path)
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's errors have no common base
        raise UserError(f"{path}: not a readable parquet file ({error})") from error


def read_parquet(path: Path) -> Any:
    """Read a parquet file as a validated pyarrow Table."""
    with open_parquet(path) as file:
        try:
            table = file.read()
            table.validate(full=True)  # invalid offsets would crash the process later
        except Exception as error:
            raise UserError(f"{path}: not a readable parquet file ({error})") from error
    return table


def _checked_vectors(path: Path, vectors: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "items dim"]:
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        got = f"{vectors.dtype} of shape {format_shape(vectors.shape)}"
        raise UserError(f"{path}: vectors must be numbers of shape items×dim, not {got}")
    if not vectors.size:
        raise UserError(f"{path}: contains no vectors")
    with np.errstate(over="ignore"):  # overflow is reported with the rows that are not finite
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _checked_labels(
    path: Path, labels: Shaped[np.ndarray, "..."], names: Shaped[np.ndarray, "..."] | None
) -> tuple[Labels, tuple[str, ...] | None]:
    if labels.ndim != 1 or labels.dtype.kind not in "iuUT":
        raise UserError(f"{path}: labels must be one integer or string per vector, not {labels.dtype}")
    if labels.dtype.kind in "iu":
        integers = labels.astype(np.int64)
        if names is None:
            return integers, None
        if len(labels) and not (integers.min() >= 0 and integers.max() < len(names)):
            span = f"{integers.min()}…{integers.max()}"
            raise UserError(f"{path}: labels are in {span}, but there are {len(names)} class_names")
        return integers, tuple(str(name) for name in names)
    if names is not None:
        raise UserError(f"{path}: class_names cannot be used with string labels; remove one of them")
    return index_names([str(label) for label in labels])


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ARRAYS if name in file.files}
    except Exception as error:  # zipfile and numpy raise many types
        # Without numpy's message, which recommends to allow pickles.
        raise UserError(f"{path}: not a readable .npz of plain arrays as written by numpy.savez") from error


def _write_npz(path: Path, content: VectorFile) -> None:
    arrays: dict[str, Any] = {"vectors": content.vectors, "labels": content.labels}
    if content.class_names is not None:
        arrays["class_names"] = np.array(content.class_names, dtype=str)
    if content.paths is not None:
        arrays["paths"] = np.array(content.paths, dtype=str)
    np.savez(path, **arrays)


def _read_parquet(path: Path) -> dict[str, Any]:
    table = read_parquet(path)
    import pyarrow.compute

    arrays: dict[str, Any] = {}
    for name in {"vectors", "labels", "paths"}.intersection(table.column_names):
        column = table.column(name).combine_chunks()
        if column.null_count:
            raise UserError(f"{path}: column {name!r} is empty in {counted(column.null_count, 'row')}")
        if name != "vectors":
            arrays[name] = np.array(column.to_pylist())
            continue
        is_list = pyarrow.types.is_list(column.type) or pyarrow.types.is_fixed_size_list(column.type)
        value_type = column.type.value_type if is_list else None
        numbers = is_list and (pyarrow.types.is_floating(value_type) or pyarrow.types.is_integer(value_type))
        if not numbers or len(pyarrow.compute.list_value_length(column).unique()) > 1:
            raise UserError(f"{path}: column 'vectors' must contain lists of numbers of equal length")
        arrays[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    if names := (table.schema.metadata or {}).get(_CLASS_NAMES):
        try:
            arrays["class_names"] = np.array(json.loads(names), dtype=str)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: class_names in the metadata are not a list of strings ({error})") from error
    return arrays


def _write_parquet(path: Path, content: VectorFile) -> None:
    parquet = _import_parquet(path)
    import pyarrow

    flat = pyarrow.array(np.ascontiguousarray(content.vectors).ravel())
    columns: dict[str, Any] = {
        "vectors": pyarrow.FixedSizeListArray.from_arrays(flat, content.vectors.shape[1]),
        "labels": pyarrow.array(content.labels),
    }
    if content.paths is not None:
        columns["paths"] = pyarrow.array(content.paths, type=pyarrow.string())
    metadata = {} if content.class_names is None else {_CLASS_NAMES: json.dumps(content.class_names)}
    parquet.write_table(pyarrow.table(columns, metadata=metadata), path)


def _import_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: parquet files need pyarrow: pip install 'softtriple[parquet]'") from error
    return pyarrow.parquet
