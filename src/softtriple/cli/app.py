"""The application: shared options and error handling. Verbs import torch only when they run."""

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
from typer import Argument, BadParameter, Option

from softtriple.errors import UserError, escaped, first_line

if TYPE_CHECKING:
    from softtriple.metrics import Report

app = typer.Typer(
    help="Learn a similarity metric from labels, without sampling triplets, and search with it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Data = Annotated[str, Argument(help="Folder, .csv, .npz, .parquet, cub:PATH, ..., glyphs or digits.", metavar="DATA")]
RunArgument = Annotated[Path, Argument(help="Run directory.", metavar="RUN")]
StoreOption = Annotated[
    str, Option("--store", help="Folder, s3://bucket/path, or http://host:19530/DB for Milvus.", metavar="URI")
]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object; progress goes to standard error.")]
Settings = Annotated[
    list[str] | None, Option("--set", help="Change one setting, such as train.epochs=3; repeatable.", metavar="A.B=C")
]


def _only_about_data(settings: list[str] | None) -> list[str] | None:
    for setting in settings or []:
        if not setting.startswith("data."):
            raise BadParameter(f"{setting}: only data.* settings have an effect here")
    return settings


DataSettings = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="How to read DATA, such as data.label=kind; repeatable.",
        metavar="A.B=C",
        callback=_only_about_data,
    ),
]
OnError = Annotated[
    Literal["stop", "skip"] | None,
    Option("--on-error", help="What to do with unreadable files: stop (default), or skip and list them."),
]

Precision = Annotated[
    Literal["auto", "float32", "bfloat16"],
    Option("--precision", help="Of the network; auto: bfloat16 if the processor has instructions for it."),
]

Trust = Annotated[bool, Option("--trust", help="Let an old run load its backbone by name. Only for runs you trust.")]

# Out of memory or threads, which torch reports as RuntimeError, ends in one line too.
_OUT_OF_RESOURCES = re.compile(
    "can't allocate memory|not enough memory|Storage size calculation overflowed|can't start new thread"
)

_show_traceback = False


@app.callback()
def options(
    show_traceback: Annotated[
        bool, Option("--traceback", help="Show the full traceback of an error.", is_eager=True)
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
        if not _OUT_OF_RESOURCES.search(str(error)):
            raise
        _fail(f"the machine is out of memory or threads ({first_line(error)})")


def print_report(
    report: "Report",
    as_json: bool,
    baselines: "Mapping[str, Report] | None" = None,
    prefixes: "Mapping[int, Report] | None" = None,
    **more: Any,
) -> None:
    """Print a report as a table or as JSON, with the reports of untrained and shorter embeddings of the same items."""
    from softtriple.metrics import format_comparison, format_table

    def in_short(other: "Report") -> str:
        return f"Recall@1 {100 * other.recall[min(other.recall)]:.2f}, MAP@R {100 * other.map_at_r:.2f}"

    if as_json:
        for name, reports in (("baselines", baselines), ("prefixes", prefixes)):
            if reports:
                more[name] = {str(key): json.loads(other.to_json()) for key, other in reports.items()}
        print(json.dumps({**json.loads(report.to_json()), **more}))
        return
    print(format_table(report))
    for width, other in (prefixes or {}).items():
        print(f"first {width} dimensions: {in_short(other)}")
    if baselines:
        first, *others = baselines
        print(f"\n{format_comparison({first: baselines[first], 'trained': report})}")
        for name in others:
            print(f"{name}: {in_short(baselines[name])}")


def parse_integers(text: str, option: str) -> tuple[int, ...]:
    """Integers separated by commas, the value of ``option``."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise BadParameter(f"{text}: expected integers, such as 1,10,100", param_hint=option) from None


def command_line() -> str:
    """The command, quoted for a shell."""
    return shlex.join(["softtriple", *sys.argv[1:]])


def _fail(reason: str) -> NoReturn:
    if _show_traceback:
        traceback.print_exc()
    print(f"{_speaker()}: {escaped(reason)}", file=sys.stderr)
    sys.exit(1)


def _speaker() -> str:
    """The start of an error message; under torchrun it names the rank."""
    rank = os.environ.get("RANK", "0")
    return "softtriple" if rank == "0" else f"softtriple, rank {rank}"
