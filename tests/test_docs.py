"""The code in the documentation runs, and the commands, names, files and links in it exist."""

import contextlib
import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
import typer.main
from typer.testing import CliRunner

import softtriple
from softtriple.cli import app
from softtriple.config import Config, with_preset, with_settings
from softtriple.losses import LOSSES
from softtriple.models import BACKBONES
from softtriple.papers.reproduce import TARGETS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MODULES = sorted(module.name for module in pkgutil.walk_packages(softtriple.__path__, "softtriple."))
PUBLIC = set(dir(softtriple)) - {"__version__"}
README = (ROOT / "README.md").read_text(encoding="utf-8")
ONE_PAGE = (ROOT / "docs" / "all-of-softtriple.md").read_text(encoding="utf-8")
COMMAND_LINE: click.Group = typer.main.get_command(app)  # type: ignore[assignment]
VERBS = COMMAND_LINE.commands

# A fenced block: language and content; commands after <!-- run --> are run.
BLOCK = re.compile(r"(<!-- run -->\n)?^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of every softtriple command in a block, including those started by torchrun."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if re.match(r"(softtriple|torchrun) ", line) else []
        if "softtriple" in words:
            yield words[words.index("softtriple") + 1 :]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "softtriple.__main__"])
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"np": np, "torch": torch}).failed == 0


# The progress bar of pytorch-metric-learning formats a tensor that still has its gradient.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")
@pytest.mark.usefixtures("unchecked")
@each_page
def test_a_page_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks in one namespace, and the marked commands, in one empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for marked, language, content in BLOCK.findall(path.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(content, str(path), "exec"), names)
        elif marked:
            for arguments in commands(content):
                done = CliRunner().invoke(app, arguments, catch_exceptions=False)
                assert done.exit_code == 0, (arguments, done.output)


@each_page
def test_commands_are_understood(path: Path) -> None:
    for _, language, content in BLOCK.findall(path.read_text(encoding="utf-8")):
        for verb, *arguments in commands(content) if language in ("", "sh") else ():
            with VERBS[verb].make_context(verb, arguments) as context:
                settings, preset = context.params.get("settings") or (), context.params.get("preset")
                with_settings(with_preset(Config(), preset) if preset else Config(), settings)


@each_page
def test_commands_in_running_text_have_verbs_and_options_that_exist(path: Path) -> None:
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    for span in re.findall(r"`softtriple ([a-z][^`]*)`", text):
        verb, *words = span.split()
        known = {option for parameter in VERBS[verb].params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("-")} <= known, span


@each_page
def test_names_in_running_text_exist(path: Path) -> None:
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    for name in re.findall(r"`(softtriple(?:\.[A-Za-z_]\w*)+)`", text):
        assert has_name(name), name
    for name in re.findall(r"^::: (\S+)", text, flags=re.MULTILINE):
        assert has_name(name), name
    for file in re.findall(r"`((?:tests|benchmarks|examples|src)/[\w/]+\.py)", text):
        assert (ROOT / file).is_file(), file


def has_name(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            value: Any = importlib.import_module(".".join(parts[:length]))
            for part in parts[length:]:
                if not hasattr(value, part):
                    return False
                value = getattr(value, part)
            return True
    return False


def test_every_name_of_the_paper_page_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    functions = re.findall(r"`(softtriple\.[\w.]+)`", text)
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(functions) > 8
    assert len(tests) > 8
    assert all(map(has_name, functions)), functions
    for file, test in tests:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_every_equation_of_the_paper_has_a_row() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    numbers = " ".join(re.findall(r"^\| ([^|]+) \|", text, flags=re.MULTILINE))
    assert {int(number) for number in re.findall(r"\b\d+\b", numbers)} >= set(range(1, 11))


def test_the_one_page_has_every_verb_loss_backbone_and_setting() -> None:
    for verb in VERBS:
        assert f"`softtriple {verb}" in ONE_PAGE, verb
    for name, constructor in LOSSES.items():
        own = set(inspect.signature(constructor).parameters) - {"num_classes", "embedding_size", "validate"}
        row = re.search(rf"^\| `{name}` \| `{constructor.__name__}` \|(.*)\|$", ONE_PAGE, flags=re.MULTILINE)
        assert row is not None, name
        assert set(re.findall(r"\w+", row[1])) == own, name
    for name in BACKBONES:
        assert f"`{name}`" in ONE_PAGE, name
    for group in dataclasses.fields(Config):
        options = dataclasses.fields(group.type) if dataclasses.is_dataclass(group.type) else ()
        for option in options:
            if option.name != "options":
                assert f"`{group.name}.{option.name}`" in ONE_PAGE, option.name


def test_the_one_page_has_every_option_of_every_verb() -> None:
    shown = {verb: set[str]() for verb in VERBS}
    for _, _, content in BLOCK.findall(ONE_PAGE):
        for verb, *words in commands(content):
            shown[verb] |= {word for word in words if word.startswith("-")}
    for verb, command in VERBS.items():
        options = {parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)}
        assert options <= shown[verb], verb


def test_the_one_page_has_the_options_before_the_verb() -> None:
    for parameter in COMMAND_LINE.params:
        assert f"`softtriple {parameter.opts[0]}" in ONE_PAGE, parameter.opts


def test_the_one_page_has_every_target_of_reproduce() -> None:
    for target in TARGETS:
        assert re.search(rf"^\|[^|]*`{target}`", ONE_PAGE, flags=re.MULTILINE), target


def test_the_one_page_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs"}
    section = ONE_PAGE.partition("## Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == extras


def test_the_one_page_has_every_public_name() -> None:
    for name in PUBLIC:
        assert f"`softtriple.{name}`" in ONE_PAGE, name


def test_the_api_page_imports_every_public_name() -> None:
    text = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    block = next(content for _, language, content in BLOCK.findall(text) if language == "python")
    assert set(re.findall(r"^    (\w+),$", block, flags=re.MULTILINE)) == PUBLIC


def test_public_names() -> None:
    for name in dir(softtriple):
        assert getattr(softtriple, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'TripletLoss'"):
        softtriple.TripletLoss  # noqa: B018


@each_page
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
        if path.is_relative_to(ROOT / "docs"):  # the site has no other files
            assert (path.parent / target).resolve().is_relative_to(ROOT / "docs"), target


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) < 200


def test_the_map_of_the_code_is_complete_and_fits_fifteen_lines() -> None:
    section = README.partition("## Map of the code")[2]
    content = next(content for _, _, content in BLOCK.findall(section))
    entries = {path.name + "/" * path.is_dir() for path in (ROOT / "src" / "softtriple").glob("[a-z]*")}
    assert len(content.splitlines()) <= 15
    assert {entry for entry in entries if entry not in content.split()} <= {"py.typed"}
