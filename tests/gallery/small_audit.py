"""An audit of the small gallery: one finding of each kind."""

import json
from pathlib import Path
from typing import Any

from tests.gallery.small_gallery import HOSTILE

ITEMS = {"set/mislabelled.png": "green", "set/0-0.png": "blue", "set/2-5.png": HOSTILE, "gone.png": "blue"}


def place(item: str, split: str = "train") -> dict[str, Any]:
    return {"item": item, "split": split, "row": list(ITEMS).index(item), "label": ITEMS[item]}


def make_audit(folder: Path, **changes: Any) -> Path:
    copies = {"how": "exact", "similarity": 1.0, "conflict": False, "leak": False}
    content = {
        "name": "discs",
        "items": 26,
        "features": "features of conv-small",
        "notes": [],
        "suspects": [
            {**place("set/2-5.png"), "suggested": "green", "odds": 2.5, "wrong": 0.4},
            {**place("set/mislabelled.png"), "suggested": "blue", "odds": 9.0, "wrong": 0.98},
        ],
        "duplicates": [
            {**copies, "items": [place("set/2-5.png"), place("gone.png")]},
            {**copies, "conflict": True, "items": [place("set/0-0.png"), place("set/mislabelled.png")]},
            {**copies, "leak": True, "items": [place("set/0-0.png"), place("gone.png", "test")]},
        ],
        "leak": {
            "groups": 1,
            "test_items": 1,
            "with": {"recall@1": 0.75, "map_at_r": 0.5},
            "without": {"recall@1": 0.5, "map_at_r": 0.4},
        },
        "unreadable": [{**place("gone.png", "test"), "reason": "truncated"}],
        "odd": [{**place("set/0-0.png"), "reason": "tiny: 8×8 pixels"}],
        "outliers": [{**place("set/2-5.png"), "closeness": 0.12}],
        "classes": [
            {"kind": "few", "classes": [HOSTILE], "value": 8.0},
            {"kind": "split", "classes": ["blue"], "value": 0.8},
            {"kind": "confusable", "classes": ["blue", "green"], "value": 0.2},
        ],
    }
    folder.mkdir(exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(content | changes))
    return folder
