"""A small table of customers' questions, made of parts: a stand-in for intent data sets, which need a download."""

import csv
import itertools
from pathlib import Path

import numpy as np

ACTIONS = {
    "activate": ("activate", "switch on", "start using", "turn on"),
    "cancel": ("cancel", "call off", "get rid of", "stop"),
    "change": ("change", "update", "modify", "edit"),
    "find": ("find", "locate", "look up", "see"),
    "pay": ("pay for", "settle", "pay off", "clear the bill for"),
    "reset": ("reset", "recover", "restore", "set up again"),
}
OBJECTS = {
    "card": ("card", "debit card", "bank card", "credit card"),
    "order": ("order", "purchase", "delivery", "parcel"),
    "password": ("password", "login", "sign-in code", "pin"),
    "subscription": ("subscription", "membership", "monthly plan", "renewal"),
}
FRAMES = (
    "how do I {} my {}?",
    "I want to {} the {}",
    "please help me {} my {}",
    "what must I do to {} a {}",
    "can you {} my {} today?",
    "is it possible to {} my {} online",
    "I need to {} this {} now!",
)


def utterances(per_intent: int = 30, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs of an utterance and its intent, in order of the intents."""
    random = np.random.default_rng(seed)
    rows = []
    for (action, verbs), (thing, nouns) in itertools.product(ACTIONS.items(), OBJECTS.items()):
        every = [frame.format(verb, noun) for frame in FRAMES for verb in verbs for noun in nouns]
        chosen = random.permutation(len(every))[:per_intent]
        rows += [(every[number], f"{action} {thing}") for number in chosen]
    return rows


def write_intents(path: Path, per_intent: int = 30, seed: int = 0) -> Path:
    """Write the table with the columns ``utterance`` and ``intent``."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["utterance", "intent"])
        writer.writerows(utterances(per_intent, seed))
    return path
