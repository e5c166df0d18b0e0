"""Data sources: load a `Benchmark` from a folder, a table, a vector file, or by the name of a benchmark."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from softtriple.data.benchmark import Benchmark, MissingDataError, OnError
from softtriple.data.cache import data_directory
from softtriple.data.images import IMAGE_SUFFIXES
from softtriple.data.sources import table, vectors
from softtriple.data.sources.cars196 import load_cars196
from softtriple.data.sources.cub import load_cub
from softtriple.data.sources.digits import load_digits
from softtriple.data.sources.folder import load_folder
from softtriple.data.sources.glyphs import load_glyphs
from softtriple.data.sources.inshop import load_inshop
from softtriple.data.sources.omniglot import load_omniglot, load_omniglot_alphabets
from softtriple.data.sources.sop import load_sop
from softtriple.data.splitting import Splitting
from softtriple.errors import UserError, did_you_mean

Loader = Callable[..., Benchmark]

EMBEDDED: dict[str, Loader] = {
    "digits": load_digits,
    "glyphs": load_glyphs,
}
SCHEMES: dict[str, Loader] = {
    "cars196": load_cars196,
    "cub": load_cub,
    "inshop": load_inshop,
    "omniglot": load_omniglot,
    "omniglot-alphabets": load_omniglot_alphabets,
    "sop": load_sop,
}
# Folder of a downloaded benchmark in the data folder.
FOLDERS = {
    "cars196": "cars196",
    "cub": "CUB_200_2011",
    "inshop": "inshop",
    "omniglot": "omniglot",
    "omniglot-alphabets": "omniglot",
    "sop": "Stanford_Online_Products",
}


def load_benchmark(spec: str, **options: Any) -> Benchmark:
    """Load the data that ``spec`` names; the signature of the loader defines which ``options`` exist.

    ``spec`` is a folder of class folders (or of train/ and test/), a .csv, .tsv, .jsonl or .parquet table, a .npz or
    .parquet file of vectors, a benchmark with its folder such as ``cub:PATH``, a downloaded benchmark such as ``cub``,
    or ``glyphs`` or ``digits``, which need no files. An option that is None counts as not given.

    ``split="none"`` loads data to index or embed: all items are in ``test`` unless the source has its own split, and a
    single class, an unlabelled folder of images or one image file is enough.
    """
    loader, arguments = find_loader(spec)
    given = {name: value for name, value in options.items() if value is not None}
    parameters = list(inspect.signature(loader).parameters)[len(arguments) :]
    known = [name for one in parameters for name in (Splitting._fields if one == "splitting" else (one,))]
    if given.get("split") == "none" and "split" not in known:
        del given["split"]  # the source has its own split
    for name in given:
        if name not in known:
            which = did_you_mean(name, known) if known else "it has no options"
            raise UserError(f"{spec} has no option {name!r}; {which}")
    if given.get("on_error", "stop") not in get_args(OnError):
        raise UserError(f"on_error = {given['on_error']!r}; expected 'stop' or 'skip'")
    if "splitting" in parameters:
        given["splitting"] = Splitting(**{name: given.pop(name) for name in Splitting._fields if name in given})
    return loader(*arguments, **given)


def find_loader(spec: str) -> tuple[Loader, tuple[Path, ...]]:
    """The loader for ``spec`` and its positional arguments; reads nothing but a parquet schema."""
    if spec in EMBEDDED:
        return EMBEDDED[spec], ()
    scheme, colon, rest = spec.partition(":")
    if scheme in SCHEMES and (colon or not Path(spec).exists()):
        path = Path(rest).expanduser().absolute() if rest else downloaded(scheme)
        if not rest and not path.is_dir():
            name = scheme.removesuffix("-alphabets")
            raise MissingDataError(
                f"{spec}: not downloaded yet. Get it with `softtriple download {name}`, "
                f"or name its folder: {scheme}:PATH"
            )
        return SCHEMES[scheme], (path,)
    path = Path(spec).expanduser().absolute()  # a run may be used from another directory
    if path.is_dir():
        return load_folder, (path,)
    if not path.exists():
        if colon and len(scheme) > 1:  # not a drive letter
            raise UserError(f"unknown benchmark {scheme!r} in {spec!r}; {did_you_mean(scheme, SCHEMES)}")
        named = [*(f"{name}:PATH" for name in SCHEMES), *EMBEDDED]
        raise MissingDataError(f"{spec}: no such file or folder; {did_you_mean(spec, named)}")
    match path.suffix.lower():
        case ".parquet":
            with vectors.open_parquet(path) as file:
                has_vectors = "vectors" in file.schema_arrow.names
            return (vectors.load_vectors if has_vectors else table.load_table), (path,)
        case ".npz":
            return vectors.load_vectors, (path,)
        case suffix if suffix in table.SUFFIXES:
            return table.load_table, (path,)
        case suffix if suffix in IMAGE_SUFFIXES:
            return load_folder, (path,)
        case suffix:
            kinds = ", ".join((*table.SUFFIXES, ".npz"))
            raise UserError(f"{spec}: cannot read {suffix or 'a file without suffix'}; expected a folder or {kinds}")


def downloaded(scheme: str) -> Path:
    """Where the benchmark ``scheme`` is once it is downloaded."""
    return data_directory().absolute() / FOLDERS[scheme]


def absolute_spec(spec: str) -> str:
    """``spec`` with an absolute path, independent of the working directory.

    Example:
        >>> absolute_spec("glyphs"), absolute_spec("cub:/data/CUB_200_2011")
        ('glyphs', 'cub:/data/CUB_200_2011')
    """
    if spec in EMBEDDED:
        return spec
    scheme, colon, rest = spec.partition(":")
    path = Path(spec).expanduser()
    if scheme in SCHEMES and (colon or not path.exists()):
        folder = Path(rest).expanduser().absolute() if rest else downloaded(scheme)
        return f"{scheme}:{folder}" if rest or folder.is_dir() else spec
    return str(path.absolute()) if path.exists() else spec
