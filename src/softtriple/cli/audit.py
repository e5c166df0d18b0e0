"""The verb audit: find problems in data."""

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option

from softtriple.cli.app import AsJson, DataSettings, OnError, Trust, app, command_line


@app.command(short_help="Find wrong labels, copies and odd items in data.")
def audit(
    source: Annotated[str, Argument(help="Data, as for train, or a run directory.", metavar="DATA_OR_RUN")],
    out: Annotated[
        Path | None, Option("--out", help="Folder for audit.html, audit.csv and audit.json.", metavar="DIR")
    ] = None,
    on_error: OnError = None,
    settings: DataSettings = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Find suspect labels, near-duplicates, leaks between train and test, odd items and doubtful classes."""
    is_run = (Path(source) / "config.toml").is_file()
    if is_run and (settings or on_error):
        raise BadParameter("a run has its own data", param_hint="--set, --on-error")
    if trust and not is_run:
        raise BadParameter("applies to runs, and this is data", param_hint="--trust")
    if out is not None and out.exists() and not out.is_dir():
        raise BadParameter(f"{out} is a file; expected a folder", param_hint="--out")

    from softtriple.config import Config, with_settings, with_values
    from softtriple.data import absolute_spec
    from softtriple.progress import Reporter
    from softtriple.report.audit import audit_json, audit_text, write_audit
    from softtriple.training import Run
    from softtriple.training.audit import audit as run_audit

    reporter = Reporter()
    if is_run:
        result = run_audit(Run.load(source, trust=trust, reporter=reporter), reporter=reporter)
    else:
        config = with_settings(Config(dataset=absolute_spec(source)), settings or [])
        given = {} if on_error is None else {"data.on_error": on_error}
        result = run_audit(with_values(config, given), reporter=reporter)
    files = [] if out is None else write_audit(result, out, command=command_line())
    print(json.dumps(audit_json(result), ensure_ascii=False) if as_json else audit_text(result))
    if files:
        reporter.note(f"written: {', '.join(map(str, files))}")
