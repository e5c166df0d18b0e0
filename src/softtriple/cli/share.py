"""Verbs for downloading and sharing: download, push, pull."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from softtriple.cli.app import RunArgument, Trust, app

Repository = Annotated[str, Argument(help="Repository on the Hugging Face hub.", metavar="USER/NAME")]


@app.command(short_help="Download a benchmark, or BN-Inception's weights.")
def download(
    name: Annotated[
        str, Argument(help="cub, cars196, sop, inshop, omniglot, or bn-inception for its weights.", metavar="NAME")
    ],
    to: Annotated[
        Path | None, Option("--to", help="Target folder; default: the data folder, where train looks.", metavar="DIR")
    ] = None,
) -> None:
    """Download NAME, verify it and print its licence; an interrupted download is resumed."""
    from softtriple.data.sources.publications import PUBLICATIONS, get_benchmark
    from softtriple.errors import UserError, did_you_mean
    from softtriple.progress import Reporter

    reporter = Reporter()
    if name in PUBLICATIONS:
        folder = get_benchmark(name, to, reporter=reporter)
        print(folder)
        reporter.note(f"use it: softtriple train {name if to is None else f'{name}:{folder}'} --out runs/{name}")
    elif name == "bn-inception":
        from softtriple.models.backbones.bn_inception import BN_INCEPTION_URL
        from softtriple.models.weights import download_weights

        reporter.note("licence: none stated; distributed with pretrained-models.pytorch (BSD-3-Clause)")
        reporter.note("cite: Ioffe, Szegedy: Batch Normalization. ICML 2015 (https://arxiv.org/abs/1502.03167)")
        with reporter.task(name) as update:
            file = download_weights(BN_INCEPTION_URL, to, progress=update)
        print(file)
        more = "" if to is None else f" --set model.weights={file}"
        reporter.note(f"use it: softtriple train DATA --backbone bn-inception{more} --out RUN")
    else:
        which = did_you_mean(name, [*PUBLICATIONS, "bn-inception"])
        raise UserError(f"there is nothing called {name!r} to download; {which}")


@app.command(short_help="Push a run to the Hugging Face hub.")
def push(
    run: RunArgument,
    repo: Repository,
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    licence: Annotated[
        str | None, Option("--licence", help="Licence of the weights, such as apache-2.0.", metavar="NAME")
    ] = None,
    onnx: Annotated[bool, Option("--onnx", help="Add the encoder as encoder.onnx.")] = False,
    trust: Trust = False,
) -> None:
    """Push the encoder, centres, configuration, metrics and model card of RUN to the hub, without its data."""
    from softtriple.interop import hub

    print(hub.push(run, repo, private=private, licence=licence, onnx=onnx, trust=trust))


@app.command(short_help="Pull a run from the Hugging Face hub.")
def pull(
    repo: Repository,
    out: Annotated[Path, Option("--out", help="New run directory.", metavar="RUN")],
    revision: Annotated[str | None, Option("--revision", help="Branch, tag or commit.", metavar="NAME")] = None,
) -> None:
    """Pull a run from the hub; neither pulling nor using it executes any of its files."""
    from softtriple.interop import hub

    hub.pull(repo, out, revision=revision)
    print(out)
