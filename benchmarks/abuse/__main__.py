"""Everything that this project claims to survive, tried: crashes, full disks, hostile files, wrong values.

    python -m benchmarks.abuse [--quick] [--only NAME,NAME] [--json]

The whole takes about ten minutes of one core, ``--quick`` half a minute. The exit status is 1 if anything failed.
Losses and metrics are fuzzed by ``pytest tests/abuse --hypothesis-profile=abuse``.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.abuse import children, crashes, disks, documents, images, server

# Of each: how hard it is tried, and how hard in the quick form.
TRIALS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any], dict[str, Any] | None]] = {
    "crashes": (crashes.crash_matrix, {"kills": 50}, {"kills": 2}),
    "locks": (crashes.locks, {}, {}),
    "injected full disk": (disks.injected, {"times": 40}, {"times": 4}),
    "real full disk": (disks.real, {"sizes": (4, 16, 28, 40, 52, 64, 80)}, {"sizes": (40,)}),
    "full disk under two ranks": (disks.ranks, {"sizes": (200, 1000, 1400)}, None),
    "mutated pictures": (images.mutated_images, {"count": 1000}, {"count": 100}),
    "hostile folder": (images.hostile_folder, {"count": 1000}, {"count": 20}),
    "unreadable": (images.unreadable, {}, {}),
    "mutated documents": (documents.mutated_documents, {"count": 150}, {"count": 6}),
    "wrong settings": (documents.wrong_settings, {"share": 1.0}, {"share": 0.02}),
    "pickles": (documents.pickles, {}, {}),
    "server": (server.clients, {"seconds": 120.0}, None),  # its quick form are the tests of the gallery
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few of each: what the tests run")
    parser.add_argument("--only", default=",".join(TRIALS), help="names, separated by commas")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    children.warm_up()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="softtriple-abuse-") as folder:
        Path(folder).chmod(0o755)  # one trial reads as another user
        for name in options.only.split(","):
            trial, *forms = TRIALS[name]
            form = forms[options.quick]
            if form is None:
                continue
            start = time.monotonic()
            results[name] = trial(Path(folder) / name, **form)
            results[name]["seconds"] = round(time.monotonic() - start, 1)
            if not options.json:
                print(name, json.dumps(results[name], indent=2), flush=True)
    if options.json:
        print(json.dumps(results))
    sys.exit(any(result["failures"] for result in results.values()))


if __name__ == "__main__":
    main()
