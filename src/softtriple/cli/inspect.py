"""Verbs that look at runs, vectors and the installation: evaluate, embed, centers, export, info."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from softtriple.cli.app import AsJson, Data, DataSettings, OnError, RunArgument, Trust, app, print_report


@app.command(short_help="Measure a run, or vectors from anywhere.")
def evaluate(
    source: Annotated[
        str, typer.Argument(help="A run directory, or a .npz or .parquet of vectors and labels.", metavar="RUN_OR_FILE")
    ],
    data: Annotated[str | None, typer.Option("--data", help="Data other than the run's own.", metavar="DATA")] = None,
    gallery: Annotated[
        Path | None,
        typer.Option("--gallery", help="Gallery file; the vectors in FILE are the queries.", metavar="FILE"),
    ] = None,
    recall_at: Annotated[
        str | None, typer.Option("--recall-at", help="The k of Recall@k for a file.", metavar="1,2,4,8")
    ] = None,
    settings: DataSettings = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Measure retrieval and clustering of a run on its test classes, or of vectors from anywhere."""
    is_run = Path(source).is_dir()
    if data is not None and not is_run:
        raise typer.BadParameter("--data needs a run directory", param_hint="--data")
    if settings and data is None:
        raise typer.BadParameter("--set says how to read --data, which is missing", param_hint="--set")
    if is_run and (gallery is not None or recall_at is not None):
        raise typer.BadParameter("a run takes these from its data", param_hint="--gallery, --recall-at")

    from softtriple import dist
    from softtriple.metrics import evaluate_file
    from softtriple.progress import Reporter
    from softtriple.training import Run

    with dist.joined():
        if is_run:
            run = Run.load(source, trust=trust, reporter=Reporter(quiet=not dist.is_main()))
            report = run.evaluate(None if data is None else run.data_config(data, settings or []))
            baselines = run.baselines if data is None else None
        else:
            report, baselines = evaluate_file(Path(source), gallery, _ranks(recall_at or "1,2,4,8")), None
        if dist.is_main():
            print_report(report, as_json, baselines)


@app.command(short_help="Write embeddings to .npz or .parquet.")
def embed(
    run: RunArgument,
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The .npz or .parquet file to write.", metavar="FILE")],
    on_error: OnError = None,
    settings: DataSettings = None,
    trust: Trust = False,
) -> None:
    """Write the embedding, class and path of every item of DATA to FILE."""
    from softtriple import dist
    from softtriple.errors import counted
    from softtriple.progress import Reporter
    from softtriple.training import Run

    with dist.joined():
        reporter = Reporter(quiet=not dist.is_main())
        loaded = Run.load(run, trust=trust, reporter=reporter)
        count = loaded.write_embeddings(data, out, settings=settings or [], on_error=on_error)
        reporter.note(f"{counted(count, 'embedding')} in {out}")


@app.command(short_help="Count the distinct centres of each class.")
def centers(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also draw them to a .svg or .png file.", metavar="FILE")
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Show how many centres of each class are distinct after the regulariser has merged those not needed."""
    from softtriple.report import centers as counting
    from softtriple.training import Run

    counts = counting.count_centers(Run.load(run, trust=trust))
    if out is not None:
        counting.draw(counts, out)
    told = {"classes": counts.distinct, "mean": counts.mean, "centers_per_class": counts.most}
    print(json.dumps(told) if as_json else counting.text(counts))


@app.command(short_help="Write the encoder as ONNX or TorchScript.")
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", help="The file: .onnx, .pt or .pt2, by format.", metavar="FILE")],
    format: Annotated[
        Literal["onnx", "torchscript", "torch-export"], typer.Option("--format", help="The format of the file.")
    ] = "onnx",
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write the encoder of RUN as one file that needs no softtriple, after checking that its embeddings agree."""
    from softtriple.interop.export import export_encoder
    from softtriple.models import Encoder

    made = export_encoder(Encoder.load(run, trust=trust), out, format, force=force)
    if as_json:
        print(json.dumps({**made._asdict(), "file": str(made.file)}))
    else:
        opset = "" if made.opset is None else f", opset {made.opset}"
        taken = made.description["input"]
        print(f"{made.file}: {made.format}{opset}; largest difference from the encoder {made.difference:.1g}")
        print(f"input: {taken['name']}, {taken['type']} {taken['shape']}; details are in the file's metadata")


@app.command(short_help="Show versions, device, weights and cache.")
def info(
    prune: Annotated[
        float | None,
        typer.Option("--prune", help="Remove cached data not used for DAYS.", min=0, metavar="DAYS"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, device, backbones and whether their weights are installed, and what the cache holds."""
    from softtriple.cli import info as about

    told = about.facts(prune)
    print(json.dumps(told) if as_json else about.text(told))


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text}: expected integers, such as 1,10,100", param_hint="--recall-at") from None
