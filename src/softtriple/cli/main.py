"""The command line: one verb for each thing a person does. torch is imported inside the verbs, so --help is quick."""

import json
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from softtriple.config import Config, as_toml, read_config, with_preset, with_settings

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
    str, typer.Option("--store", help="A folder, s3://bucket/path, or http://host:19530/DB of Milvus.", metavar="URI")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, progress on standard error.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one setting, such as train.epochs=3; repeatable.", metavar="A.B=C"),
]
DataSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="How to read DATA, such as data.label=kind; repeatable.", metavar="A.B=C"),
]
OnError = Annotated[
    Literal["stop", "skip"] | None,
    typer.Option("--on-error", help="At a file that cannot be read: stop, or skip it and say why; default stop."),
]


def main() -> None:
    """Run the command line; what a user did wrong ends in one sentence and exit status 1, not in a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        print(f"{_speaker()}: stopped", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, FloatingPointError, ImportError, MemoryError) as error:
        _fail(str(error) or "out of memory")
    except RuntimeError as error:  # what torch raises where Python would raise MemoryError
        if not re.search("can't allocate memory|Storage size calculation overflowed", str(error)):
            raise
        _fail(f"out of memory ({str(error).splitlines()[0]})")


@app.command(short_help="Train an encoder on labelled data.")
def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The run directory, new unless --resume.", metavar="RUN")],
    config: Annotated[Path | None, typer.Option("--config", help="TOML file to start from.", metavar="FILE")] = None,
    preset: Annotated[
        Literal["paper", "official", "sop"] | None, typer.Option("--preset", help="A published recipe.")
    ] = None,
    loss: Annotated[str | None, typer.Option("--loss", help="Name of the loss.", metavar="NAME")] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="Name of the network.", metavar="NAME")] = None,
    dim: Annotated[int | None, typer.Option("--dim", help="Length of the embedding.", metavar="N")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over the data.", metavar="N")] = None,
    on_error: OnError = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train an encoder on DATA, evaluate it on classes it has not seen, and keep everything in RUN."""
    chosen = _configuration(config, out, resume)
    if preset is not None:
        chosen = with_preset(chosen, preset)
    named = {
        "dataset": data,
        "data.on_error": on_error,
        "loss.name": loss,
        "model.backbone": backbone,
        "model.dim": dim,
        "train.epochs": epochs,
    }
    changes = [f"{name}={as_toml(value)}" for name, value in named.items() if value is not None]
    chosen = with_settings(chosen, [*changes, *(settings or [])])

    from softtriple import dist
    from softtriple.progress import Reporter
    from softtriple.report import pictures as illustrate
    from softtriple.training import train as experiment
    from softtriple.training.run import RunDir

    with dist.joined():
        reporter = Reporter(quiet=not dist.is_main())
        try:
            outcome = experiment.train(chosen, RunDir(out), reporter, resume=resume)
        except KeyboardInterrupt:
            # All of the command: where it stopped early, the settings are not in the run directory yet.
            reporter.note(f"stopped; continue with: {_command()}{'' if resume else ' --resume'}")
            raise
        if not dist.is_main():
            return
    illustrate.write_page(outcome.run, {illustrate.method_name(outcome): outcome}, command=_command())
    _print_report(outcome.report, as_json, run=str(out))
    reporter.note(f"the encoder is in {outcome.run.encoder}, the report in {outcome.run.page_file}")


@app.command(short_help="Measure a run, or vectors from anywhere.")
def evaluate(
    source: Annotated[
        str, typer.Argument(help="A run directory, or a .npz or .parquet of vectors and labels.", metavar="RUN_OR_FILE")
    ],
    data: Annotated[
        str | None, typer.Option("--data", help="Other data than the run was trained on.", metavar="DATA")
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option("--gallery", help="Vectors that those of the file search.", metavar="FILE")
    ] = None,
    recall_at: Annotated[
        str | None, typer.Option("--recall-at", help="The ks of Recall@k for a file.", metavar="1,2,4,8")
    ] = None,
    settings: DataSettings = None,
    as_json: AsJson = False,
) -> None:
    """Measure retrieval and clustering of a run on its test classes, or of vectors from anywhere."""
    from softtriple import dist
    from softtriple.progress import Reporter
    from softtriple.training import inference

    is_run = Path(source).is_dir()
    if data is not None and not is_run:
        raise typer.BadParameter("--data goes with a run directory", param_hint="--data")
    if settings and data is None:
        raise typer.BadParameter("--set goes with --data: how to read it", param_hint="--set")
    if is_run and (gallery is not None or recall_at is not None):
        raise typer.BadParameter("a run has those of its data", param_hint="--gallery, --recall-at")
    other = None if data is None else _data_only(data, settings)
    with dist.joined():
        reporter = Reporter(quiet=not dist.is_main())
        if is_run:
            report = inference.evaluate_run(Path(source), other, reporter)
        else:
            report = inference.evaluate_file(Path(source), gallery, inference.read_ranks(recall_at or "1,2,4,8"))
        if dist.is_main():
            _print_report(report, as_json)


@app.command(short_help="Write vectors to .npz or .parquet.")
def embed(
    run: RunArgument,
    data: Data,
    out: Annotated[Path, typer.Option("--out", help=".npz or .parquet to write.", metavar="FILE")],
    on_error: OnError = None,
    settings: DataSettings = None,
) -> None:
    """Write the embedding, class and path of every item of DATA to FILE."""
    from softtriple import dist
    from softtriple.progress import Reporter
    from softtriple.training import inference

    chosen = _data_only(data, settings, on_error)
    with dist.joined():
        reporter = Reporter(quiet=not dist.is_main())
        count = inference.embed_data(run, chosen, out, reporter)
        reporter.note(f"{count} embeddings in {out}")


@app.command(short_help="The whole path on embedded data, in a minute.")
def demo(
    out: Annotated[
        Path | None, typer.Option("--out", help="For runs and report; runs/demo, or the next free name.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train SoftTriple and the single-centre softmax on rendered characters, and show what several centres find."""
    from softtriple.papers import demo as demonstration
    from softtriple.progress import Reporter

    results, page = demonstration.run(out or demonstration.free_folder(), Reporter(), command=_command())
    if as_json:
        found = {name: json.loads(result.report.to_json()) for name, result in results.items()}
        print(json.dumps({**found, "page": str(page)}))
    else:
        print(demonstration.table(results))
        print(f"the report with pictures is in {page}")


@app.command(short_help="Run a table or figure of the paper.")
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
        Literal["full", "head"] | None,
        typer.Option("--protocol", help="full: as the paper; head: on cached features (default without a GPU)."),
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
    print(json.dumps({target: made.numbers, "files": files}) if as_json else f"\n{made.text}")
    reporter.note(f"\nwritten: {', '.join(files)}")


@app.command(short_help="Put vectors into a store.")
def index(
    run: RunArgument,
    data: Data,
    store: StoreOption,
    part: Annotated[Literal["all", "train", "test"], typer.Option("--split", help="Which half of DATA.")] = "all",
    kind: Annotated[
        Literal["auto", "flat", "approximate"],
        typer.Option("--index", help="flat: exact; approximate: faster for many items; auto: by their number."),
    ] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Embed stored items anew: their files have changed.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the items of DATA from the store instead.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Measure recall@10 against the exact neighbours.")] = False,
    on_error: OnError = None,
    settings: DataSettings = None,
    as_json: AsJson = False,
) -> None:
    """Embed the items of DATA with the encoder of RUN and put them into a vector store; what is there is updated."""
    from softtriple.progress import Reporter
    from softtriple.search import catalog

    if delete and (again or check or kind != "auto"):
        raise typer.BadParameter("it goes with no --again, --check or --index", param_hint="--delete")
    reporter = Reporter()
    chosen = _data_only(data, settings, on_error)
    if delete:
        told: dict[str, Any] = {"deleted": catalog.delete_data(run, chosen, store, reporter, part=part)}
    else:
        try:
            told = asdict(catalog.index_data(run, chosen, store, reporter, part=part, index=kind, again=again))
        except KeyboardInterrupt:
            reporter.note("stopped; the same command continues")
            raise
    if check:
        told["recall_at_10"] = catalog.check_recall(run, store, reporter)
    text = ", ".join(f"{name.replace('_', ' ')} {round(number, 4)}" for name, number in told.items())
    print(json.dumps({"store": store, **told}) if as_json else f"{store}: {text}")


@app.command(short_help="Find what is similar in a store.")
def search(
    run: RunArgument,
    queries: Annotated[
        list[str], typer.Argument(help="Image files, texts, or row:N of the run's test items.", metavar="QUERY")
    ],
    store: StoreOption,
    k: Annotated[int, typer.Option("-k", help="How many neighbours.", min=1, metavar="N")] = 10,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Only items of this class; repeatable.", metavar="NAME")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Do without the approximate index.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the items of a store that are most similar to each QUERY."""
    from softtriple.progress import Reporter
    from softtriple.search import catalog

    found = catalog.search(run, queries, store, Reporter(), k=k, classes=classes or [], exact=exact)
    tables = "\n\n".join(map(catalog.table, queries, found))
    print(json.dumps(catalog.answers(queries, found)) if as_json else tables)


@app.command(short_help="Count the distinct centres of each class.")
def centers(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", help="Draw them to a .svg or .png file.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many centres of each class are distinct, after the regulariser has merged what was not needed."""
    from softtriple.report import centers as counting

    counts = counting.count_centers(run)
    if out is not None:
        counting.draw(counts, out)
    told = {"classes": counts.distinct, "mean": counts.mean, "centers_per_class": counts.most}
    print(json.dumps(told) if as_json else counting.text(counts))


@app.command(short_help="Write the encoder as ONNX or TorchScript.")
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", help="The file: .onnx, .pt or .pt2 by its format.", metavar="FILE")],
    format: Annotated[
        Literal["onnx", "torchscript", "torch-export"], typer.Option("--format", help="What reads it.")
    ] = "onnx",
    as_json: AsJson = False,
) -> None:
    """Write the encoder of RUN as one file that needs no softtriple, once its vectors have been found the same."""
    from softtriple.interop.export import export_encoder
    from softtriple.models import Encoder

    made = export_encoder(Encoder.load(run), out, format)
    if as_json:
        print(json.dumps({**made._asdict(), "file": str(made.file)}))
    else:
        opset = "" if made.opset is None else f", opset {made.opset}"
        taken = made.description["input"]
        print(f"{made.file}: {made.format}{opset}; its vectors differ by {made.difference:.1g} at most")
        print(f"input: {taken['name']}, {taken['type']} {taken['shape']}; the rest is written in the file")


@app.command(short_help="Look at a run and its store in the browser.")
def serve(
    run: RunArgument,
    store: StoreOption,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.", metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen on.", min=1, max=65535)] = 8000,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Asked of everybody; better given by the environment.", envvar="SOFTTRIPLE_TOKEN"),
    ] = None,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Listen on a public address without a token.")
    ] = False,
) -> None:
    """Show the run and its store in the browser: search by picture, a map, and which classes fail and why."""
    try:
        from softtriple.gallery import serving
    except ImportError as error:
        raise ImportError(f"the gallery needs {error.name}: pip install 'softtriple[serve]'") from error
    from softtriple.progress import Reporter

    serving.serve(run, store, host=host, port=port, token=token, allow_public=allow_public, reporter=Reporter())


@app.command(short_help="Show versions, device, weights and cache.")
def info(
    prune: Annotated[
        float | None,
        typer.Option("--prune", help="Clear the cache of what is unused for DAYS.", min=0, metavar="DAYS"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, device, backbones and whether their weights are at hand, and what the cache holds."""
    from softtriple.cli import info as about

    told = about.facts(prune)
    print(json.dumps(told) if as_json else about.text(told))


def _configuration(file: Path | None, out: Path, resume: bool) -> Config:
    if file is not None:
        return read_config(file)
    if resume and (out / "config.toml").exists():
        return read_config(out / "config.toml")
    return Config()


def _fail(reason: str) -> NoReturn:
    # One line, whatever is in the name of a file: line breaks, or what a terminal would obey.
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in reason)
    print(f"{_speaker()}: {line}", file=sys.stderr)
    sys.exit(1)


def _speaker() -> str:
    """Who says it: under torchrun several processes may have something to say."""
    rank = os.environ.get("RANK", "0")
    return "softtriple" if rank == "0" else f"softtriple, rank {rank}"


def _data_only(data: str, settings: list[str] | None, on_error: str | None = None) -> Config:
    """How to read ``data``, for verbs that train nothing: of the other settings none would have an effect."""
    for setting in settings or []:
        if not setting.startswith("data."):
            raise typer.BadParameter(f"{setting}: only data.* has an effect here", param_hint="--set")
    chosen = [] if on_error is None else [f"data.on_error={on_error}"]
    return with_settings(Config(dataset=data), [*chosen, *(settings or [])])


def _print_report(report: "Report", as_json: bool, **more: str) -> None:
    from softtriple.metrics import format_table

    print(json.dumps({**json.loads(report.to_json()), **more}) if as_json else format_table(report))


def _command() -> str:
    return shlex.join(["softtriple", *sys.argv[1:]])
