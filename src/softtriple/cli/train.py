"""Verbs for training: train, demo, reproduce."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from softtriple.cli.app import AsJson, Data, OnError, Settings, app, command_line, parse_integers, print_report
from softtriple.config import Config, read_config, with_preset, with_settings, with_values


@app.command(short_help="Train an encoder on labelled data.")
def train(
    data: Data,
    out: Annotated[Path, Option("--out", help="New run directory; with --resume, an existing one.", metavar="RUN")],
    config: Annotated[Path | None, Option("--config", help="TOML file with settings.", metavar="FILE")] = None,
    preset: Annotated[
        Literal["paper", "official", "sop"] | None, Option("--preset", help="A published recipe.")
    ] = None,
    loss: Annotated[str | None, Option("--loss", help="Loss; default: softtriple.", metavar="NAME")] = None,
    backbone: Annotated[
        str | None,
        Option("--backbone", help="Backbone; default: by kind of data.", metavar="NAME"),
    ] = None,
    dim: Annotated[int | None, Option("--dim", help="Width of the embedding.", metavar="N")] = None,
    dims: Annotated[
        str | None, Option("--dims", help="Widths to which embeddings may be truncated.", metavar="64,128,512")
    ] = None,
    epochs: Annotated[int | None, Option("--epochs", help="Number of epochs.", metavar="N")] = None,
    minutes: Annotated[
        float | None, Option("--minutes", help="Time budget; decides how much of the network is trained.", metavar="N")
    ] = None,
    start: Annotated[
        Path | None,
        Option("--from", help="Start from the encoder, centres and settings of another run.", metavar="RUN"),
    ] = None,
    exclude: Annotated[
        Path | None, Option("--exclude", help=".csv of items to leave out, such as audit.csv.", metavar="FILE")
    ] = None,
    labels: Annotated[
        Path | None, Option("--labels", help=".csv of corrected labels, with columns item and label.", metavar="FILE")
    ] = None,
    on_error: OnError = None,
    settings: Settings = None,
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train an encoder on DATA, evaluate it on unseen classes, and write everything to RUN."""
    if config is not None and start is not None:
        raise BadParameter("the settings come from the run of --from", param_hint="--config")
    if any(setting.partition("=")[0].strip() == "dataset" for setting in settings or []):
        raise BadParameter("the data are the argument DATA", param_hint="--set dataset")
    chosen = _configuration(config, out, resume)
    if start is not None and not (resume and (out / "config.toml").exists()):
        from softtriple.training.continuing import continued_config

        chosen = continued_config(start, data)
    if preset is not None:
        chosen = with_preset(chosen, preset)
    files = {"exclude": exclude, "labels": labels}
    given: dict[str, Any] = {"data.on_error": on_error, "model.dim": dim, "train.epochs": epochs}
    given |= {"model.dims": None if dims is None else parse_integers(dims, "--dims")}
    given |= {"loss.name": loss, "model.backbone": backbone, "train.minutes": minutes}
    given |= {f"data.{name}": None if file is None else str(file) for name, file in files.items()}
    chosen = with_values(chosen, {name: value for name, value in given.items() if value is not None}, "options")
    chosen = with_settings(chosen, settings or [])

    from softtriple import dist
    from softtriple.progress import Reporter
    from softtriple.training import train as run_training

    with dist.joined():
        reporter = Reporter(quiet=not dist.is_main())
        try:
            run = run_training(data, out=out, config=chosen, resume=resume, reporter=reporter)
        except KeyboardInterrupt:
            # With all options: the run directory may not contain the settings yet.
            option = " --resume" if out.is_dir() and not resume else ""
            reporter.note(f"stopped; continue with: {command_line()}{option}")
            raise
        if not dist.is_main():
            return
    # Imported here, so that an error in the arguments need not wait for matplotlib.
    from softtriple.report import write_calibration, write_page
    from softtriple.training.baseline import verdict

    page = write_page(run, command=command_line())
    print_report(run.report, as_json, run.baselines, run.prefixes, run=str(out))
    if run.baseline is not None and (sentence := verdict(run.baseline, run.report)) is not None:
        reporter.note(sentence)
    if run.calibration is not None:
        write_calibration(run)
    reporter.note(f"encoder: {out / 'encoder'}, report: {page}")


@app.command(short_help="Train and compare two losses in a minute.")
def demo(
    out: Annotated[
        Path | None, Option("--out", help="Folder for runs and report; default: runs/demo.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train SoftTriple and a softmax with one centre per class on rendered characters, and compare them."""
    from softtriple.papers import demo as demonstration
    from softtriple.progress import Reporter

    reports, page = demonstration.run(out or demonstration.free_folder(), Reporter(), command=command_line())
    if as_json:
        metrics = {name: json.loads(result.report.to_json()) for name, result in reports.items()}
        print(json.dumps({**metrics, "page": str(page)}))
    else:
        print(demonstration.table(reports))
        print(f"report: {page}")


@app.command(short_help="Reproduce a table or figure of the paper.")
def reproduce(
    target: Annotated[
        str,
        Argument(
            help="table1 to table6, centers, recall-vs-k, retrieved, illustration or hidden-modes.", metavar="TARGET"
        ),
    ],
    out: Annotated[Path, Option("--out", help="Folder for runs, tables and figures.", metavar="DIR")],
    data: Annotated[
        str | None, Option("--data", help="Data to run on; illustration has its own.", metavar="DATA")
    ] = None,
    seeds: Annotated[int, Option("--seeds", help="Number of runs per row.", metavar="N")] = 1,
    rows: Annotated[
        list[str] | None,
        Option(
            "--rows",
            help="Only these rows, such as softtriple,proxy-nca; a loss that the table lacks is added; repeatable.",
            metavar="A,B",
        ),
    ] = None,
    protocol: Annotated[
        Literal["paper", "full", "head"] | None,
        Option(
            "--protocol",
            help="paper: as published, on BN-Inception; full: all layers of EfficientNet-Lite0; head: a head on its "
            "cached features (default without a GPU).",
        ),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper beside the published numbers; finished runs in DIR are reused."""
    from softtriple.papers.reproduce import reproduce as make
    from softtriple.progress import Reporter

    reporter = Reporter()
    chosen = [row.strip() for given in rows or [] for row in given.split(",")] or None
    try:
        made = make(
            target, data, out, seeds=seeds, rows=chosen, protocol=protocol, settings=settings or [], reporter=reporter
        )
    except KeyboardInterrupt:
        reporter.note("stopped; run the same command again to continue")
        raise
    files = [str(file) for file in made.files]
    print(json.dumps({target: made.numbers, "files": files}) if as_json else f"\n{made.text}")
    reporter.note(f"\nwritten: {', '.join(files)}")


def _configuration(file: Path | None, out: Path, resume: bool) -> Config:
    if file is not None:
        return read_config(file)
    if resume and (out / "config.toml").exists():
        return read_config(out / "config.toml")
    return Config()
