"""Verbs for trained runs and the installation: evaluate, calibrate, embed, centers, compare, export, info."""

import json
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, BadParameter, Option

from softtriple.cli.app import (
    AsJson,
    Data,
    DataSettings,
    OnError,
    Precision,
    RunArgument,
    Trust,
    app,
    parse_integers,
    print_report,
)


@app.command(short_help="Evaluate a run, or any vectors.")
def evaluate(
    source: Annotated[
        str, Argument(help="Run directory, or .npz or .parquet file of vectors and labels.", metavar="RUN_OR_FILE")
    ],
    data: Annotated[
        str | None, Option("--data", help="Evaluate on other data than the run's own.", metavar="DATA")
    ] = None,
    gallery: Annotated[
        Path | None, Option("--gallery", help="Gallery file; the vectors in FILE are the queries.", metavar="FILE")
    ] = None,
    recall_at: Annotated[
        str | None, Option("--recall-at", help="Values of k of Recall@k, for a file.", metavar="1,2,4,8")
    ] = None,
    settings: DataSettings = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate retrieval and clustering of a run on its test classes, or of any vectors with labels."""
    is_run = Path(source).is_dir()
    if data is not None and not is_run:
        raise BadParameter("--data needs a run directory", param_hint="--data")
    if settings and data is None:
        raise BadParameter("applies to --data, which is missing", param_hint="--set")
    if is_run and (gallery is not None or recall_at is not None):
        raise BadParameter("for files only; a run has its own", param_hint="--gallery, --recall-at")

    from softtriple import dist
    from softtriple.errors import UserError
    from softtriple.metrics import evaluate_file
    from softtriple.progress import Reporter
    from softtriple.training import Run

    baselines, prefixes = None, None
    with dist.joined():
        if is_run:
            run = Run.load(source, trust=trust, reporter=Reporter(quiet=not dist.is_main()))
            report = run.evaluate(None if data is None else run.data_config(data, settings or []))
            if data is None:
                baselines, prefixes = run.baselines, run.prefixes
        else:
            ranks = parse_integers(recall_at or "1,2,4,8", "--recall-at")
            if not Path(source).exists():
                raise UserError(f"{source}: no such run directory or file of vectors")
            report = evaluate_file(Path(source), gallery, ranks)
        if dist.is_main():
            print_report(report, as_json, baselines, prefixes)


@app.command(short_help="Find the threshold for 'none of these'.")
def calibrate(
    run: RunArgument,
    data: Annotated[
        str | None, Option("--data", help="Calibrate on other data than the run's own.", metavar="DATA")
    ] = None,
    far: Annotated[
        float | None, Option("--far", help="Target false-accept rate: unknown queries accepted.", metavar="SHARE")
    ] = None,
    frr: Annotated[
        float | None, Option("--frr", help="Or target false-reject rate. Default: equal rates.", metavar="SHARE")
    ] = None,
    on_error: OnError = None,
    settings: DataSettings = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Find the similarity below which a search should answer "none of these", on classes not trained on.

    Uses held-out training classes if RUN has any, else its test classes. Writes calibration.json, calibration.svg and
    the section of report.html in RUN.
    """
    if (settings or on_error) and data is None:
        raise BadParameter("apply to --data, which is missing", param_hint="--set, --on-error")
    from softtriple.metrics import format_calibration
    from softtriple.metrics.calibration import check_rates
    from softtriple.progress import Reporter
    from softtriple.report import write_calibration
    from softtriple.training import Run

    check_rates(far, frr)
    loaded = Run.load(run, trust=trust, reporter=Reporter())
    source = None if data is None else loaded.data_config(data, settings or [], on_error=on_error, whole=True)
    calibration = loaded.calibrate(source, far=far, frr=frr)
    files = write_calibration(loaded)
    print(json.dumps(json.loads(calibration.to_json())) if as_json else format_calibration(calibration))
    Reporter().note(f"written: {', '.join(map(str, files))}")


@app.command(short_help="Write embeddings to .npz or .parquet.")
def embed(
    run: RunArgument,
    data: Data,
    out: Annotated[Path, Option("--out", help=".npz or .parquet file to write.", metavar="FILE")],
    precision: Precision = "auto",
    on_error: OnError = None,
    settings: DataSettings = None,
    trust: Trust = False,
) -> None:
    """Write the embedding, class and path of every item of DATA to FILE.

    If it is interrupted, the same command continues where it stopped.
    """
    from softtriple import dist
    from softtriple.errors import counted
    from softtriple.progress import Reporter
    from softtriple.training import Run

    with dist.joined():
        reporter = Reporter(quiet=not dist.is_main())
        loaded = Run.load(run, trust=trust, reporter=reporter)
        try:
            count = loaded.write_embeddings(data, out, precision=precision, settings=settings or [], on_error=on_error)
        except KeyboardInterrupt:
            reporter.note("stopped; run the same command again to continue")
            raise
        reporter.note(f"{counted(count, 'embedding')} in {out}")


@app.command(short_help="Count the distinct centres of each class.")
def centers(
    run: RunArgument,
    out: Annotated[
        Path | None, Option("--out", help="Also draw a chart to a .svg or .png file.", metavar="FILE")
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Show how many centres of each class remain distinct; the regulariser merges those not needed."""
    from softtriple.report import centers as counting
    from softtriple.training import Run

    counts = counting.count_centers(Run.load(run, trust=trust))
    if out is not None:
        counting.draw(counts, out)
    summary = {"classes": counts.distinct, "mean": counts.mean, "centers_per_class": counts.most}
    print(json.dumps(summary) if as_json else counting.text(counts))


@app.command(short_help="Compare the reports of runs.")
def compare(
    runs: Annotated[
        list[Path], Argument(help="Run directories; the others are compared with the first.", metavar="RUN RUN")
    ],
    as_json: AsJson = False,
) -> None:
    """Show reports side by side, with paired 95 % intervals of the differences from the first."""
    if len(runs) < 2:
        raise BadParameter("expected at least two runs", param_hint="RUN RUN")
    from softtriple.metrics import format_comparison
    from softtriple.training.comparing import compare_runs

    compared = compare_runs(runs)
    if as_json:
        print(json.dumps(compared.to_table()))
        return
    print(format_comparison(compared.reports))
    for note in compared.notes:
        print(note)


@app.command(short_help="Write the encoder as ONNX or TorchScript.")
def export(
    run: RunArgument,
    out: Annotated[
        Path, Option("--out", help="File to write: .onnx, .pt or .pt2, depending on the format.", metavar="FILE")
    ],
    format: Annotated[Literal["onnx", "torchscript", "torch-export"], Option("--format", help="File format.")] = "onnx",
    classify: Annotated[
        bool, Option("--classify", help="Include the centres, so that the file also predicts classes.")
    ] = False,
    int8: Annotated[bool, Option("--int8", help="8-bit weights (ONNX): a quarter of the size, less exact.")] = False,
    force: Annotated[bool, Option("--force", help="Overwrite FILE if it exists.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Export the encoder of RUN to a file that runs without softtriple, and check that its embeddings agree."""
    from softtriple.interop.export import export_encoder
    from softtriple.models import Encoder
    from softtriple.training import Run

    if classify:
        loaded = Run.load(run, trust=trust)
        made = export_encoder(loaded.encoder, out, format, loss=loaded.loss, int8=int8, force=force)
    else:
        made = export_encoder(Encoder.load(run, trust=trust), out, format, int8=int8, force=force)
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
        float | None, Option("--prune", help="Remove cached data not used for DAYS.", min=0, metavar="DAYS")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, the device, which weights are installed, and the size of the cache."""
    from softtriple.cli import info as about

    facts = about.facts(prune)
    print(json.dumps(facts) if as_json else about.text(facts))
