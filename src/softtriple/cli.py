"""The command line: one verb for each thing a person does. torch is imported inside the verbs, so --help is quick."""

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softtriple.config import Config, read_config, with_preset, with_settings

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
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, progress on standard error.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one setting, such as train.epochs=3; repeatable.", metavar="A.B=C"),
]


def main() -> None:
    """Run the command line; what a user did wrong ends in one sentence and exit status 1, not in a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        print("softtriple: stopped", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except (ValueError, OSError, FloatingPointError, ImportError, MemoryError) as error:
        print(f"softtriple: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


@app.command()
def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The run directory, new unless --resume.", metavar="RUN")],
    config: Annotated[Path | None, typer.Option("--config", help="TOML file to start from.", metavar="FILE")] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="A published recipe: paper, official or sop.")] = None,
    loss: Annotated[str | None, typer.Option("--loss", help="Name of the loss.", metavar="NAME")] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="Name of the network.", metavar="NAME")] = None,
    dim: Annotated[int | None, typer.Option("--dim", help="Length of the embedding.", metavar="N")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over the data.", metavar="N")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train an encoder on DATA, evaluate it on classes it has not seen, and keep everything in RUN."""
    chosen = _configuration(config, out, resume)
    if preset is not None:
        chosen = with_preset(chosen, preset)
    named = {"dataset": data, "loss.name": loss, "model.backbone": backbone, "model.dim": dim, "train.epochs": epochs}
    changes = [f"{name}={json.dumps(value)}" for name, value in named.items() if value is not None]
    chosen = with_settings(chosen, [*changes, *(settings or [])])

    from softtriple import experiment, illustrate
    from softtriple.progress import Reporter
    from softtriple.training.run import RunDir

    reporter = Reporter()
    try:
        outcome = experiment.train(chosen, RunDir(out), reporter, resume=resume)
    except KeyboardInterrupt:
        reporter.note(f"stopped; continue with: softtriple train {data} --out {out} --resume")
        raise
    illustrate.write_page(outcome.run, {illustrate.method_name(outcome): outcome}, command=_command())
    _print_report(outcome.report, as_json, run=str(out))
    reporter.note(f"the encoder is in {outcome.run.encoder}, the report in {outcome.run.page_file}")


@app.command()
def evaluate(
    source: Annotated[
        str, typer.Argument(help="A run directory, or a .npz or .parquet of vectors and labels.", metavar="RUN_OR_FILE")
    ],
    data: Annotated[
        str | None, typer.Option("--data", help="Other data than the run was trained on.", metavar="DATA")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure retrieval and clustering of a run on its test classes, or of vectors from anywhere."""
    from softtriple import inference
    from softtriple.progress import Reporter

    if Path(source).is_dir():
        _print_report(inference.evaluate_run(Path(source), data, Reporter()), as_json)
    elif data is not None:
        raise typer.BadParameter("--data goes with a run directory", param_hint="--data")
    else:
        _print_report(inference.evaluate_file(Path(source)), as_json)


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help=".npz or .parquet to write.", metavar="FILE")],
    settings: Settings = None,
) -> None:
    """Write the embedding, class and path of every item of DATA to FILE."""
    from softtriple import inference
    from softtriple.progress import Reporter

    chosen = with_settings(Config(dataset=data), settings or [])
    reporter = Reporter()
    count = inference.embed_data(run, chosen, out, reporter)
    reporter.note(f"{count} embeddings in {out}")


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Where the runs and the report go; runs/demo, or the next free name.", metavar="DIR"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train SoftTriple and the single-centre softmax on rendered characters, and show what several centres find."""
    from softtriple import demonstration
    from softtriple.progress import Reporter

    results, page = demonstration.run(out or _free(Path("runs/demo")), Reporter(), command=_command())
    if as_json:
        found = {name: json.loads(result.report.to_json()) for name, result in results.items()}
        print(json.dumps({**found, "page": str(page)}))  # noqa: T201
    else:
        print(demonstration.table(results))  # noqa: T201
        print(f"the report with pictures is in {page}")  # noqa: T201


@app.command()
def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            help="table1 to table6, centers, recall-vs-k, retrieved, illustration or hidden-modes.", metavar="TARGET"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where runs, tables and figures go.", metavar="DIR")],
    data: Annotated[
        str | None, typer.Option("--data", help="The data to run on; illustration brings its own.", metavar="DATA")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many runs of each row.", metavar="N")] = 1,
    rows: Annotated[
        str | None, typer.Option("--rows", help="Only these rows, such as softtriple,proxy-nca.", metavar="A,B")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help="full: as the paper; head: on kept features (default without a GPU)."),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Run a table or figure of the paper, beside the published numbers; what is finished in DIR is not run again."""
    from softtriple.papers.reproduce import reproduce as make
    from softtriple.progress import Reporter

    reporter = Reporter()
    chosen = None if rows is None else [row.strip() for row in rows.split(",")]
    try:
        made = make(
            target, data, out, seeds=seeds, rows=chosen, protocol=protocol, settings=settings or [], reporter=reporter
        )
    except KeyboardInterrupt:
        reporter.note("stopped; the same command continues")
        raise
    files = [str(file) for file in made.files]
    print(json.dumps({target: made.numbers, "files": files}) if as_json else f"\n{made.text}")  # noqa: T201
    reporter.note(f"\nwritten: {', '.join(files)}")


@app.command()
def info(as_json: AsJson = False) -> None:
    """Show versions, device, backbones and whether their weights are at hand, and what the cache holds."""
    from softtriple import about

    told = about.facts()
    print(json.dumps(told) if as_json else about.text(told))  # noqa: T201


def _free(path: Path) -> Path:
    """``path``, or ``path-2``, ``path-3`` and so on if it is taken: nothing is ever overwritten."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
    return next(name for name in names if not name.exists())


def _configuration(file: Path | None, out: Path, resume: bool) -> Config:
    if file is not None:
        return read_config(file)
    if resume and (out / "config.toml").exists():
        return read_config(out / "config.toml")
    return Config()


def _print_report(report: "Report", as_json: bool, **more: str) -> None:
    from softtriple.metrics import format_table

    print(json.dumps({**json.loads(report.to_json()), **more}) if as_json else format_table(report))  # noqa: T201


def _command() -> str:
    return " ".join(["softtriple", *sys.argv[1:]])
