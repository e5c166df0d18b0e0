"""The package as it is imported: every public name, at once and typed."""

import subprocess
import sys
from importlib.resources import files

import softtriple


def test_every_public_name_is_there() -> None:
    for name in dir(softtriple):
        assert getattr(softtriple, name) is not None
    assert "SoftTripleEmbedding" in dir(softtriple)


def test_a_star_imports_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from softtriple import *", names)
    assert set(dir(softtriple)) <= names.keys()


def test_importing_it_imports_neither_torch_nor_scikit_learn() -> None:
    code = "import sys, softtriple; sys.exit(bool({'torch', 'sklearn', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_is_typed() -> None:
    assert files("softtriple").joinpath("py.typed").is_file()
