"""A set of texts to measure on: sentences for the commands of Home Assistant, as a CSV of texts and labels.

    pip install home-assistant-intents hassil
    python benchmarks/intents.py home-assistant.csv

A class is an intent with one combination of slots ("HassTurnOn area_domain light"). Its sentences are drawn from
the templates of the package at random, with seed 0: the same file for the same version of the package.
"""

import csv
import json
import random
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import hassil

MOST, FEWEST = 30, 8  # sentences of a class; a class with fewer is left out
# Lists without values in the package: they hold what a household calls its things.
NAMES = {
    "area": ["kitchen", "bedroom", "living room", "garage", "office", "bathroom"],
    "floor": ["ground floor", "first floor", "basement", "attic"],
    "name": ["bedroom lamp", "front door", "fan", "television", "desk lamp", "heater", "coffee machine"],
}
ANYTHING = ["blue sky", "party time", "milk", "jazz", "dinner", "laundry", "tomato soup", "nightfall"]


def main() -> None:
    content = json.loads(files("home_assistant_intents").joinpath("data/en.json").read_text())
    intents, draw = hassil.Intents.from_dict(content), random.Random(0)
    sentences: dict[str, set[str]] = {}
    for name, intent in intents.intents.items():
        for block in intent.data:
            domain = str((block.slots or {}).get("domain", ""))
            label = " ".join([name, str((block.metadata or {}).get("slot_combination", "")), domain]).strip()
            rules = {**intents.expansion_rules, **(block.expansion_rules or {})}
            for _ in range(10 * MOST):
                words = expand(draw.choice(block.sentences).expression, rules, intents.slot_lists, draw).split()
                sentences.setdefault(label, set()).add(" ".join(words))
    with Path(sys.argv[1]).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for label, found in sorted(sentences.items()):
            if len(found) >= FEWEST:
                writer.writerows((text, label) for text in draw.sample(sorted(found), min(len(found), MOST)))


def expand(part: Any, rules: dict[str, Any], lists: dict[str, Any], draw: random.Random) -> str:
    """One of the sentences that a template stands for."""
    match part:
        case hassil.TextChunk():
            return str(part.original_text)
        case hassil.Alternative():
            return expand(draw.choice(part.items), rules, lists, draw)
        case hassil.Permutation():
            return " ".join(expand(item, rules, lists, draw) for item in draw.sample(part.items, len(part.items)))
        case hassil.Sequence():
            return "".join(expand(item, rules, lists, draw) for item in part.items)
        case hassil.RuleReference():
            return expand(rules[part.rule_name].expression, rules, lists, draw)
        case hassil.ListReference():
            return value(part.list_name, lists.get(part.list_name), rules, lists, draw)
    raise TypeError(f"{part!r} is no part of a template")


def value(name: str, values: Any, rules: dict[str, Any], lists: dict[str, Any], draw: random.Random) -> str:
    """One of the values of a list."""
    match values:
        case hassil.TextSlotList():
            return expand(draw.choice(values.values).text_in, rules, lists, draw)
        case hassil.RangeSlotList():
            return str(draw.randint(values.start, values.stop))
    return draw.choice(NAMES.get(name, ANYTHING))


if __name__ == "__main__":
    main()
