"""What a search says about a query: its neighbours, whether any of them is meant at all, and which class it has."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from softtriple.metrics.calibration import GallerySize
from softtriple.progress import one_line
from softtriple.search import Hit
from softtriple.search.products import slices

Unknown = Literal["flag", "reject"]

# The cosine of two copies in float32 is at least this: a threshold at or beyond 1 must not reject a copy.
COPY = 1 - 1e-6
# Similarities of queries and centres at a time, 64 MB of them.
SIMILARITIES = 1 << 24


class Decision(NamedTuple):
    """The most likely class, what speaks for it, and by how much that is more than for the second class."""

    class_name: str
    score: float
    margin: float


class SameClass(NamedTuple):
    """Whether two items have the same class, its probability if that is as likely as not, and their similarity."""

    same: bool
    probability: float
    score: float


@dataclass(frozen=True, eq=False)
class Answer(Sequence[Hit]):
    """The neighbours of one query, best first; a sequence of `Hit`.

    Without a calibration of the run, ``probabilities``, ``threshold`` and ``known`` are None.
    """

    hits: tuple[Hit, ...]
    probabilities: tuple[float, ...] | None  # that a hit has the query's class, if half of all queries are unknown
    threshold: float | None  # for the size of the gallery that was searched
    known: bool | None  # whether the best match reaches the threshold; if not, the answer is "none of these"
    vote: Decision | None  # by the hits, each weighted by its probability, or by its score without a calibration
    by_centers: Decision | None  # the nearest centre of the trained classes

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, place: int | slice) -> Hit | tuple[Hit, ...]:
        """One hit, or some of them."""
        return self.hits[place]

    def __len__(self) -> int:
        """The number of hits."""
        return len(self.hits)


def make_answer(
    hits: Sequence[Hit],
    size: GallerySize | None,
    by_centers: Decision | None = None,
    *,
    min_score: float | None = None,
    unknown: Unknown = "flag",
) -> Answer:
    """The answer for ``hits`` from a gallery that ``size`` describes, or from any if it is None.

    Hits below ``min_score`` are left out. ``unknown="reject"`` leaves out all hits if none of them is meant.
    """
    threshold = None if size is None else min(size.threshold, COPY)
    known = None if threshold is None else bool(hits) and hits[0].score >= threshold
    kept = tuple(hit for hit in hits if min_score is None or hit.score >= min_score)
    if known is False and unknown == "reject":
        kept = ()
    probabilities = None if size is None else tuple(size.probability(hit.score) for hit in kept)
    weights = [max(hit.score, 0.0) for hit in kept] if probabilities is None else probabilities
    return Answer(
        hits=kept,
        probabilities=probabilities,
        threshold=threshold,
        known=known,
        vote=weighted_vote([hit.item.class_name for hit in kept], weights),
        by_centers=by_centers,
    )


def weighted_vote(class_names: Sequence[str], weights: Sequence[float]) -> Decision | None:
    """The class with the largest sum of weights, as a share of all; None without weights above 0.

    Example:
        >>> weighted_vote(["cat", "dog", "cat"], [0.5, 0.25, 0.25])
        Decision(class_name='cat', score=0.75, margin=0.5)
    """
    sums: dict[str, float] = defaultdict(float)
    for name, weight in zip(class_names, weights, strict=True):
        sums[name] += weight
    total = sum(sums.values())
    if total <= 0:
        return None
    (name, first), *others = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))
    return Decision(name, first / total, (first - (others[0][1] if others else 0.0)) / total)


def unit_centers(centers: Float[Tensor, "classes k dim"] | None) -> Float[Tensor, "classes k dim"] | None:
    """``centers`` as `center_decisions` takes them."""
    return None if centers is None else F.normalize(centers.detach().cpu().float(), dim=-1)


def center_decisions(
    vectors: Float[np.ndarray, "queries dim"],
    centers: Float[Tensor, "classes k dim"] | None,
    class_names: Sequence[str],
) -> list[Decision | None]:
    """The trained class with the most similar unit centre of each query, or None for all if there are no centres."""
    if centers is None:
        return [None] * len(vectors)
    decisions: list[Decision | None] = []
    flat, shape = centers.flatten(0, 1), centers.shape[:2]
    for part in slices(0, len(vectors), max(1, SIMILARITIES // len(flat))):
        similarity = torch.from_numpy(vectors[part]).float() @ flat.T
        best, rows = similarity.view(-1, *shape).amax(dim=2).topk(2)  # a run has at least two classes
        for (first, second), row in zip(best.tolist(), rows[:, 0].tolist(), strict=True):
            decisions.append(Decision(class_names[row], first, first - second))
    return decisions


def format_answer(query: str, answer: Answer) -> str:
    """The hits of ``query``, one per line: rank, score, probability if known, class, and the path or text."""
    lines = [one_line(query) if answer or answer.known is False else f"{one_line(query)}: nothing found"]
    digits = 3
    if answer.known is False:
        assert answer.threshold is not None
        digits = digits_apart(answer[0].score, answer.threshold) if answer else digits
        lines.append(f"none of these: the best match is below {answer.threshold:.{digits}f}")
    if answer:
        names = [one_line(hit.item.class_name) for hit in answer]
        width = max(len("class"), *map(len, names))
        shares = [""] * len(names) if answer.probabilities is None else [f"{p:>11.2f}  " for p in answer.probabilities]
        head = f"{'score':>{digits + 3}}  {'probability  ' if answer.probabilities else ''}{'class':<{width}}"
        lines.append(f"rank  {head}  item")
        for rank, (hit, name, share) in enumerate(zip(answer, names, shares, strict=True), start=1):
            source = hit.item.source
            shown = hit.item.id if source.startswith("data:") or not source else source
            lines.append(f"{rank:>4}  {hit.score:>{digits + 3}.{digits}f}  {share}{name:<{width}}  {one_line(shown)}")
    return "\n".join(lines)


def digits_apart(score: float, threshold: float) -> int:
    """The number of digits, at least 3, with which two different numbers look different.

    Example:
        >>> digits_apart(0.99961, 0.99984)
        4
    """
    return next((digits for digits in range(3, 17) if f"{score:.{digits}f}" != f"{threshold:.{digits}f}"), 17)


def answers_json(queries: Sequence[str], answers: Sequence[Answer]) -> dict[str, Any]:
    """The answers to the queries as JSON."""
    return {"queries": [_answer_json(*pair) for pair in zip(queries, answers, strict=True)]}


def _answer_json(query: str, answer: Answer) -> dict[str, Any]:
    probabilities = answer.probabilities or [None] * len(answer)
    hits = [
        {
            **{name: value for name, value in asdict(hit.item).items() if name != "content"},
            "score": hit.score,
            "probability": probability,
        }
        for hit, probability in zip(answer, probabilities, strict=True)
    ]
    return {
        "query": query,
        "hits": hits,
        "known": answer.known,
        "threshold": answer.threshold,
        "vote": None if answer.vote is None else answer.vote._asdict(),
        "by_centers": None if answer.by_centers is None else answer.by_centers._asdict(),
    }
