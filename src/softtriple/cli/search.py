"""Verbs that search: index, search, serve."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from softtriple.cli.app import AsJson, Data, DataSettings, OnError, RunArgument, StoreOption, Trust, app


@app.command(short_help="Put embeddings into a store.")
def index(
    run: RunArgument,
    data: Data,
    store: StoreOption,
    part: Annotated[Literal["all", "train", "test"], typer.Option("--split", help="Which split of DATA.")] = "all",
    kind: Annotated[
        Literal["auto", "flat", "approximate"],
        typer.Option("--index", help="flat: exact; approximate: faster for many items; auto: by their number."),
    ] = "auto",
    again: Annotated[
        bool, typer.Option("--again", help="Embed stored items again because their files have changed.")
    ] = False,
    add_classes: Annotated[
        bool, typer.Option("--add-classes", help="Also give new classes centres, so that the run can name them.")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the items of DATA from the store instead.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Measure recall@10 against the exact neighbours.")] = False,
    on_error: OnError = None,
    settings: DataSettings = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Embed the items of DATA with the encoder of RUN and put them into a vector store; stored items are updated."""
    if delete and (again or check or add_classes or kind != "auto"):
        others = "--again, --check, --add-classes or --index"
        raise typer.BadParameter(f"cannot be combined with {others}", param_hint="--delete")
    from softtriple.progress import Reporter
    from softtriple.training import Run

    reporter = Reporter()
    loaded = Run.load(run, trust=trust, reporter=reporter)
    chosen: dict[str, Any] = {"part": part, "settings": settings or [], "on_error": on_error}
    if delete:
        told: dict[str, Any] = {"deleted": loaded.delete(data, store, **chosen)}
    else:
        try:
            told = asdict(loaded.index(data, store, index=kind, again=again, add_classes=add_classes, **chosen))
        except KeyboardInterrupt:
            reporter.note("stopped; the same command continues")
            raise
    if check:
        told["recall_at_10"] = loaded.check_recall(store)
    text = ", ".join(f"{name.replace('_', ' ')} {round(number, 4)}" for name, number in told.items())
    print(json.dumps({"store": store, **told}) if as_json else f"{store}: {text}")


@app.command(short_help="Find similar items in a store.")
def search(
    run: RunArgument,
    queries: Annotated[
        list[str], typer.Argument(help="Image files, texts, or row:N of the run's test items.", metavar="QUERY")
    ],
    store: StoreOption,
    k: Annotated[int, typer.Option("-k", help="Number of neighbours.", min=1, metavar="N")] = 10,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Only items of this class; repeatable.", metavar="NAME")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Do not use the approximate index.")] = False,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Leave out items less similar than this.", metavar="X")
    ] = None,
    unknown: Annotated[
        Literal["flag", "reject"] | None,
        typer.Option("--unknown", help="A query that nothing matches: say so (default), or also return nothing."),
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Find the items of a store that are most similar to each QUERY, or say that none of them is meant."""
    from softtriple.progress import Reporter
    from softtriple.training import Run
    from softtriple.training.answers import answers_json, format_answer

    loaded = Run.load(run, trust=trust, reporter=Reporter())
    answers = loaded.search(
        queries, store, k=k, classes=classes or [], exact=exact, min_score=min_score, unknown=unknown
    )
    tables = "\n\n".join(map(format_answer, queries, answers))
    print(json.dumps(answers_json(queries, answers)) if as_json else tables)


@app.command(short_help="Look at a run and its store in the browser.")
def serve(
    run: RunArgument,
    store: StoreOption,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.", metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen on.", min=1, max=65535)] = 8000,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Required of every client; prefer the variable.", envvar="SOFTTRIPLE_TOKEN"),
    ] = None,
    allow_public: Annotated[
        bool, typer.Option("--allow-public", help="Listen on a public address without a token.")
    ] = False,
    edit: Annotated[
        bool, typer.Option("--edit", help="Let visitors with the token tag, relabel and delete items.")
    ] = False,
    compare: Annotated[
        str | None, typer.Option("--compare", help="Another run, to compare with; needs its store.", metavar="RUN2")
    ] = None,
    compare_store: Annotated[
        str | None, typer.Option("--compare-store", help="The store of the other run.", metavar="URI2")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option("--audit", help="Show this audit instead of making one.", metavar="DIR")
    ] = None,
    trust: Trust = False,
) -> None:
    """Show the run and its store in the browser: search, a map, which classes fail and why, and what is wrong."""
    if (compare is None) != (compare_store is None):
        raise typer.BadParameter("--compare RUN2 and --compare-store URI2 go together", param_hint="--compare")
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
