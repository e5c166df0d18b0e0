"""From a word on the command line to a Benchmark: folders, tables, vector files, and benchmarks by name."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from softtriple.data.benchmark import Benchmark, OnError
from softtriple.data.sources.digits import load_digits
from softtriple.data.sources.folder import load_folder
from softtriple.data.sources.glyphs import load_glyphs
from softtriple.data.sources.omniglot import load_omniglot, load_omniglot_alphabets
from softtriple.data.sources.published import load_cars196, load_cub, load_inshop, load_sop
from softtriple.data.sources.table import load_table
from softtriple.data.sources.vectors import load_vectors, open_parquet

EMBEDDED: dict[str, Callable[..., Benchmark]] = {
    "digits": load_digits,
    "glyphs": load_glyphs,
}
SCHEMES: dict[str, Callable[..., Benchmark]] = {
    "cars196": load_cars196,
    "cub": load_cub,
    "inshop": load_inshop,
    "omniglot": load_omniglot,
    "omniglot-alphabets": load_omniglot_alphabets,
    "sop": load_sop,
}


def load_benchmark(spec: str, **options: Any) -> Benchmark:
    """Load the data that ``spec`` names; the loader's signature decides which ``options`` exist.

    ``spec`` is a folder of class folders (or of train/ and test/), a .csv or .parquet table, a .npz or .parquet of
    vectors, a benchmark with its folder such as ``cub:PATH``, or ``glyphs`` or ``digits``, which need no file. An
    option that is None counts as not given.
    """
    loader, arguments = _find_loader(spec)
    given = {name: value for name, value in options.items() if value is not None}
    known = list(inspect.signature(loader).parameters)[len(arguments) :]
    if unknown := [name for name in given if name not in known]:
        which = f"its options are {', '.join(known)}" if known else "it has none"
        raise ValueError(f"{spec} has no option {', '.join(unknown)}; {which}")
    if given.get("on_error", "stop") not in get_args(OnError):
        raise ValueError(f"on_error = {given['on_error']!r} is neither 'stop' nor 'skip'")
    return loader(*arguments, **given)


def _find_loader(spec: str) -> tuple[Callable[..., Benchmark], tuple[Path, ...]]:
    if spec in EMBEDDED:
        return EMBEDDED[spec], ()
    scheme, colon, rest = spec.partition(":")
    if colon and scheme in SCHEMES:
        if not rest:
            raise ValueError(f"{spec} needs the folder of the benchmark: {scheme}:PATH")
        return SCHEMES[scheme], (Path(rest).expanduser(),)
    path = Path(spec).expanduser()
    if path.is_dir():
        return load_folder, (path,)
    if not path.exists():
        if colon:
            raise ValueError(f"unknown benchmark {scheme!r} in {spec!r}; {_choices()}")
        raise FileNotFoundError(f"{spec}: no such file or folder; {_choices()}")
    match path.suffix:
        case ".csv":
            return load_table, (path,)
        case ".npz":
            return load_vectors, (path,)
        case ".parquet":
            with open_parquet(path) as file:
                holds_vectors = "vectors" in file.schema_arrow.names
            return (load_vectors if holds_vectors else load_table), (path,)
        case other:
            raise ValueError(f"{spec}: data is a folder, .csv, .npz or .parquet, not {other or 'a bare file'}")


def _choices() -> str:
    named = [*(f"{scheme}:PATH" for scheme in SCHEMES), *EMBEDDED]
    return f"data is a folder, a .csv, .npz or .parquet file, or one of {', '.join(named)}"
