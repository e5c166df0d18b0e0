"""``softtriple serve``: a run and its store become the gallery."""

from pathlib import Path

from softtriple.gallery.app import create_app
from softtriple.gallery.guard import host_name, is_loopback
from softtriple.gallery.server import listen, make_server
from softtriple.gallery.settings import LOOPBACK, Settings
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.search import open_store
from softtriple.search.catalog import fingerprint
from softtriple.training.directory import RunDir
from softtriple.training.inference import read_centers


def serve(
    run: Path, store_uri: str, *, host: str, port: int, token: str | None, allow_public: bool, reporter: Reporter
) -> None:
    """Show the run in the browser until it is stopped."""
    settings = settings_for(host, token, allow_public=allow_public)
    encoder = Encoder.load(run)
    store = open_store(store_uri, fingerprint=fingerprint(run))
    try:
        app = create_app(encoder, store, read_centers(RunDir(run), encoder), settings)
        with listen(host, port) as listening:
            shown = f"[{host_name(host)}]" if ":" in host_name(host) else host
            reporter.note(f"{store.count()} items at http://{shown}:{port}/, interface at /docs; Ctrl-C stops")
            make_server(app, settings).run(sockets=[listening])
    finally:
        store.close()


def settings_for(host: str, token: str | None, *, allow_public: bool) -> Settings:
    """The settings of a server bound to ``host``; a public address needs a token, or to be wanted."""
    if is_loopback(host):
        return Settings(token=token, hosts=(*LOOPBACK, host_name(host)))
    if token is None and not allow_public:
        raise ValueError(
            f"--host {host}: others could look at everything; set a token in the environment variable "
            "SOFTTRIPLE_TOKEN, or give --allow-public if that is meant"
        )
    return Settings(token=token, hosts=None)
