"""Verbs that search: index, search, serve."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from softtriple.cli.app import AsJson, Data, DataSettings, OnError, Precision, RunArgument, StoreOption, Trust, app


@app.command(short_help="Add embeddings to a vector store.")
def index(
    run: RunArgument,
    data: Data,
    store: StoreOption,
    part: Annotated[Literal["all", "train", "test"], Option("--split", help="Split of DATA to index.")] = "all",
    kind: Annotated[
        Literal["auto", "flat", "approximate"],
        Option("--index", help="flat: exact; approximate: faster for many items; auto: by the number of items."),
    ] = "auto",
    again: Annotated[
        bool, Option("--again", help="Embed stored items again, because their files have changed.")
    ] = False,
    add_classes: Annotated[
        bool, Option("--add-classes", help="Also add centres for new classes, so that the run can predict them.")
    ] = False,
    precision: Precision = "auto",
    delete: Annotated[bool, Option("--delete", help="Remove the items of DATA from the store.")] = False,
    check: Annotated[bool, Option("--check", help="Measure recall@10 against the exact neighbours.")] = False,
    on_error: OnError = None,
    settings: DataSettings = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Embed the items of DATA with the encoder of RUN and add them to a vector store, or update them there."""
    if delete and (again or check or add_classes or kind != "auto" or precision != "auto"):
        others = "--again, --check, --add-classes, --precision or --index"
        raise BadParameter(f"cannot be combined with {others}", param_hint="--delete")
    from softtriple.progress import Reporter
    from softtriple.training import Run

    reporter = Reporter()
    loaded = Run.load(run, trust=trust, reporter=reporter)
    chosen: dict[str, Any] = {"part": part, "settings": settings or [], "on_error": on_error}
    if delete:
        summary: dict[str, Any] = {"deleted": loaded.delete(data, store, **chosen)}
    else:
        try:
            chosen |= {"index": kind, "again": again, "add_classes": add_classes, "precision": precision}
            summary = asdict(loaded.index(data, store, **chosen))
        except KeyboardInterrupt:
            reporter.note("stopped; run the same command again to continue")
            raise
    if check:
        summary["recall_at_10"] = loaded.check_recall(store)
    text = ", ".join(f"{name.replace('_', ' ')} {round(number, 4)}" for name, number in summary.items())
    print(json.dumps({"store": store, **summary}) if as_json else f"{store}: {text}")


@app.command(short_help="Find similar items in a store.")
def search(
    run: RunArgument,
    queries: Annotated[
        list[str], Argument(help="Image files, texts, or row:N of the run's test items.", metavar="QUERY")
    ],
    store: StoreOption,
    k: Annotated[int, Option("-k", help="Number of neighbours.", min=1, metavar="N")] = 10,
    classes: Annotated[
        list[str] | None, Option("--class", help="Search only this class; repeatable.", metavar="NAME")
    ] = None,
    exact: Annotated[bool, Option("--exact", help="Do not use the approximate index.")] = False,
    min_score: Annotated[
        float | None, Option("--min-score", help="Omit items with a lower similarity.", metavar="X")
    ] = None,
    unknown: Annotated[
        Literal["flag", "reject"] | None,
        Option("--unknown", help="If nothing matches a query: flag it (default), or reject it and return no items."),
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Find the items of a store that are most similar to each QUERY, or report that nothing matches."""
    from softtriple.progress import Reporter
    from softtriple.training import Run
    from softtriple.training.answers import answers_json, format_answer

    loaded = Run.load(run, trust=trust, reporter=Reporter())
    answers = loaded.search(
        queries, store, k=k, classes=classes or [], exact=exact, min_score=min_score, unknown=unknown
    )
    tables = "\n\n".join(map(format_answer, queries, answers))
    print(json.dumps(answers_json(queries, answers)) if as_json else tables)


@app.command(short_help="Browse a run and its store.")
def serve(
    run: RunArgument,
    store: StoreOption,
    host: Annotated[str, Option("--host", help="Address to listen on.", metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, Option("--port", help="Port to listen on.", min=1, max=65535)] = 8000,
    token: Annotated[
        str | None,
        Option(
            "--token",
            help="Token that clients must send; better set by the environment variable.",
            envvar="SOFTTRIPLE_TOKEN",
        ),
    ] = None,
    allow_public: Annotated[bool, Option("--allow-public", help="Listen on a public address without a token.")] = False,
    edit: Annotated[bool, Option("--edit", help="Let clients with the token tag, relabel and delete items.")] = False,
    compare: Annotated[
        str | None, Option("--compare", help="Another run to compare with; needs --compare-store.", metavar="RUN2")
    ] = None,
    compare_store: Annotated[
        str | None, Option("--compare-store", help="Store of the other run.", metavar="URI2")
    ] = None,
    audit: Annotated[
        Path | None, Option("--audit", help="Show this audit instead of making one.", metavar="DIR")
    ] = None,
    trust: Trust = False,
) -> None:
    """Serve a web gallery of RUN and its store: search, a map, which classes fail and why, and what is wrong."""
    if (compare is None) != (compare_store is None):
        raise BadParameter("--compare RUN2 and --compare-store URI2 go together", param_hint="--compare")
    from softtriple.errors import UserError
    from softtriple.progress import Reporter

    try:
        from softtriple.gallery.server import serve as serve_gallery
    except ModuleNotFoundError as error:
        raise UserError(f"the gallery needs {error.name}: pip install 'softtriple[serve]'") from error

    serve_gallery(
        run,
        store,
        host=host,
        port=port,
        token=token,
        allow_public=allow_public,
        trust=trust,
        edit=edit,
        compare=None if compare is None or compare_store is None else (compare, compare_store),
        audit=audit,
        reporter=Reporter(),
    )
