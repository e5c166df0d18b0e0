"""Robustness trials: crashes, full disks, hostile files, invalid values, and a server under attack.

    python -m benchmarks.abuse [--quick] [--only NAME,NAME] [--json]

All trials take about ten minutes on one core, ``--quick`` about half a minute. The exit status is 1 if a trial failed.
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

# The function, its arguments, and its arguments with --quick; None: not part of --quick.
TRIALS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any], dict[str, Any] | None]] = {
    "crashes": (crashes.crash_matrix, {"kills": 50}, {"kills": 2}),
    "locks": (crashes.locks, {}, {}),
    "injected full disk": (disks.injected, {"times": 40}, {"times": 4}),
    "real full disk": (disks.real, {"sizes": (4, 16, 28, 40, 52, 64, 80)}, {"sizes": (40,)}),
    "full disk under two ranks": (disks.ranks, {"sizes": (200, 1000, 1400)}, None),
    "mutated images": (images.mutated_images, {"count": 1000}, {"count": 100}),
    "hostile folder": (images.hostile_folder, {"count": 1000}, {"count": 20}),
    "unreadable": (images.unreadable, {}, {}),
    "mutated documents": (documents.mutated_documents, {"count": 150}, {"count": 6}),
    "wrong settings": (documents.wrong_settings, {"share": 1.0}, {"share": 0.02}),
    "pickles": (documents.pickles, {}, {}),
    "server": (server.clients, {"seconds": 120.0}, None),  # tests/gallery covers the quick form
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few repetitions of each trial, as in the test suite")
    parser.add_argument("--only", default=",".join(TRIALS), help="comma-separated names")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    children.warm_up()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="softtriple-abuse-") as folder:
        Path(folder).chmod(0o755)  # one trial reads it as another user
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
