"""What a search says: verdict, probabilities, votes, and their table and JSON."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from softtriple.metrics.calibration import GallerySize
from softtriple.search import Hit, Item
from softtriple.training import answers
from softtriple.training.answers import answers_json, center_decisions, format_answer, make_answer, weighted_vote

HITS = [Hit(Item("1", 0, "a", "/x/y.png"), 0.5), Hit(Item("2", 1, "long name\x1b[31m", "a\ntext"), -0.25)]
SIZE = GallerySize(classes=5.0, threshold=0.6, slope=4.0, intercept=-2.0)


def test_the_table_is_aligned_and_plain() -> None:
    assert format_answer("q", make_answer(HITS, None)).splitlines() == [
        "q",
        "rank   score  class           item",
        "   1   0.500  a               /x/y.png",
        "   2  -0.250  long name [31m  a text",
    ]
    assert format_answer("q", make_answer([], None)) == "q: nothing found"


def test_the_table_of_a_calibrated_run() -> None:
    assert format_answer("q", make_answer(HITS[:1], SIZE)).splitlines() == [
        "q",
        "none of these: the best match is below 0.600",
        "rank   score  probability  class  item",
        "   1   0.500         0.50  a      /x/y.png",
    ]
    rejected = make_answer(HITS, SIZE, unknown="reject")
    assert format_answer("q", rejected).splitlines() == ["q", "none of these: the best match is below 0.600"]


@pytest.mark.parametrize(("threshold", "known"), [(0.4, True), (0.5, True), (0.51, False)])
def test_the_best_match_decides(threshold: float, known: bool) -> None:
    size = GallerySize(classes=5.0, threshold=threshold, slope=4.0, intercept=-2.0)
    flagged, rejected = (make_answer(HITS, size, unknown=how) for how in ("flag", "reject"))
    assert flagged.known is rejected.known is known
    assert list(flagged) == HITS
    assert len(rejected) == (2 if known else 0)
    assert flagged.probabilities == pytest.approx([0.5, 1 / (1 + np.exp(3))])


def test_the_verdict_does_not_contradict_the_numbers_shown() -> None:
    size = GallerySize(classes=5.0, threshold=0.99984, slope=4.0, intercept=-2.0)
    lines = format_answer("q", make_answer([Hit(HITS[0].item, 0.99961)], size)).splitlines()
    assert lines[1].endswith("below 0.9998")
    assert lines[3].split()[1] == "0.9996"
    # The cosine of a copy can be a rounding below 1, and the threshold of a large gallery beyond 1.
    for threshold in (1.0, 1.2):
        answer = make_answer([Hit(HITS[0].item, 1 - 1e-7)], replace(size, threshold=threshold))
        assert answer.known
        assert answer.threshold is not None
        assert answer[0].score >= answer.threshold


def test_scores_below_the_least_are_left_out() -> None:
    answer = make_answer(HITS, SIZE, min_score=0.0)
    assert list(answer) == HITS[:1]
    assert answer[0] == HITS[0]
    assert len(answer.probabilities or ()) == 1


def test_votes_are_weighted_by_probability_or_score() -> None:
    hits = [
        Hit(Item(str(n), 0, name, ""), score) for n, (name, score) in enumerate([("a", 0.9), ("b", 0.6), ("b", 0.5)])
    ]
    assert make_answer(hits, None).vote == pytest.approx(("b", 0.55, 0.1))
    steep = GallerySize(classes=5.0, threshold=0.6, slope=40.0, intercept=-32.0)
    vote = make_answer(hits, steep).vote
    assert vote is not None
    assert vote.class_name == "a"
    assert weighted_vote([], []) is None
    assert weighted_vote(["a"], [0.0]) is None


def test_the_nearest_centre_by_hand() -> None:
    centers = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [-1.0, 0.0]]])
    query = np.array([[0.6, 0.8]], dtype=np.float32)
    (decision,) = center_decisions(query, centers, ["a", "b"])
    assert decision == pytest.approx(("a", 0.8, 1.4))
    assert center_decisions(query, None, ["a", "b"]) == [None]


def test_many_queries_are_decided_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    centers = torch.nn.functional.normalize(torch.randn(5, 3, 8), dim=-1)
    queries = torch.nn.functional.normalize(torch.randn(7, 8), dim=-1).numpy()
    names = list("abcde")
    expected = []
    for query in torch.from_numpy(queries):
        second, first = (centers @ query).amax(dim=1).sort().values[-2:].tolist()
        expected.append((names[int((centers @ query).amax(dim=1).argmax())], first, first - second))
    monkeypatch.setattr(answers, "SIMILARITIES", 30)  # two queries at a time
    for decision, by_hand in zip(center_decisions(queries, centers, names), expected, strict=True):
        assert decision == pytest.approx(by_hand, abs=1e-6)


def test_json_keeps_its_keys_and_adds_to_them() -> None:
    ((told,), (plain,)) = (answers_json(["q"], [make_answer(HITS, size)])["queries"] for size in (SIZE, None))
    assert (told["query"], told["known"], told["threshold"]) == ("q", False, 0.6)
    assert set(told["hits"][0]) == {"id", "label", "class_name", "source", "score", "probability"}
    assert plain["known"] is plain["threshold"] is plain["hits"][0]["probability"] is None
