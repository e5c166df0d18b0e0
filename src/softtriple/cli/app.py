"""The application: options that several verbs share, and how errors end. Verbs import torch when they run."""

import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from softtriple.errors import UserError

if TYPE_CHECKING:
    from softtriple.metrics import Report

app = typer.Typer(
    help="Learn a similarity metric from labels, without sampling triplets, and search with it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Data = Annotated[
    str, typer.Argument(help="Folder, .csv, .npz, .parquet, cub:PATH, ..., glyphs or digits.", metavar="DATA")
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")]
StoreOption = Annotated[
    str, typer.Option("--store", help="A folder, s3://bucket/path, or http://host:19530/DB for Milvus.", metavar="URI")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object; progress goes to standard error.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one setting, such as train.epochs=3; repeatable.", metavar="A.B=C"),
]


def _only_about_data(settings: list[str] | None) -> list[str] | None:
    for setting in settings or []:
        if not setting.startswith("data."):
            raise typer.BadParameter(f"{setting}: only data.* settings have an effect here")
    return settings


DataSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="How to read DATA, such as data.label=kind; repeatable.",
        metavar="A.B=C",
        callback=_only_about_data,
    ),
]
OnError = Annotated[
    Literal["stop", "skip"] | None,
    typer.Option("--on-error", help="If a file cannot be read: stop (default), or skip it and say why."),
]

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Let the run load its encoder by name, from a folder or a hub, if it lacks its own."),
]

# What the machine refuses ends in one line too; torch raises RuntimeError for some of it.
_REFUSALS = re.compile(
    "can't allocate memory|not enough memory|Storage size calculation overflowed|can't start new thread"
)

_show_traceback = False


@app.callback()
def options(
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the full traceback of an error.", is_eager=True)
    ] = False,
) -> None:
    """Options that come before the verb."""
    global _show_traceback
    _show_traceback = show_traceback


def main() -> None:
    """Run the command line; a UserError ends in one line and exit status 1, anything unexpected in a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        print(f"{_speaker()}: stopped", file=sys.stderr)
        sys.exit(130)
    except UserError as error:
        _fail(str(error))
    except OSError as error:  # without the number and quotes that Python adds
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except MemoryError:
        _fail("out of memory")
    except RuntimeError as error:
        if not _REFUSALS.search(str(error)):
            raise
        _fail(f"the machine is out of memory or threads ({str(error).splitlines()[0]})")


def print_report(
    report: "Report",
    as_json: bool,
    baselines: "Mapping[str, Report] | None" = None,
    prefixes: "Mapping[int, Report] | None" = None,
    **more: Any,
) -> None:
    """Print a report as a table or as JSON, beside what untrained and shorter embeddings reach on the same items."""
    from softtriple.metrics import format_comparison, format_table

    if as_json:
        for name, reports in (("baselines", baselines), ("prefixes", prefixes)):
            if reports:
                more[name] = {str(key): json.loads(other.to_json()) for key, other in reports.items()}
        print(json.dumps({**json.loads(report.to_json()), **more}))
        return
    print(format_table(report))
    for width, other in (prefixes or {}).items():
        first = f"Recall@1 {100 * other.recall[min(other.recall)]:.2f}, MAP@R {100 * other.map_at_r:.2f}"
        print(f"first {width} dimensions: {first}")
    if baselines:
        first, *_ = baselines
        print(f"\n{format_comparison({first: baselines[first], 'trained': report})}")
        for name, other in list(baselines.items())[1:]:
            print(f"{name}: Recall@1 {100 * other.recall[min(other.recall)]:.2f}, MAP@R {100 * other.map_at_r:.2f}")


def parse_integers(text: str, option: str) -> tuple[int, ...]:
    """Integers separated by commas, as ``option`` takes them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text}: expected integers, such as 1,10,100", param_hint=option) from None


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["softtriple", *sys.argv[1:]])


def _fail(reason: str) -> NoReturn:
    if _show_traceback:
        traceback.print_exc()
    # One line, whatever is in the name of a file: line breaks, or control characters that a terminal would obey.
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in reason)
    print(f"{_speaker()}: {line}", file=sys.stderr)
    sys.exit(1)


def _speaker() -> str:
    """Who reports it: under torchrun several processes may have something to say."""
    rank = os.environ.get("RANK", "0")
    return "softtriple" if rank == "0" else f"softtriple, rank {rank}"
