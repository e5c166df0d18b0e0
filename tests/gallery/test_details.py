"""Mistakes of a class against a plain loop, and the size of image files."""

from pathlib import Path

from PIL import Image
from tests.gallery.test_analysis import random_snapshot

from softtriple.gallery.details import MISTAKES, NEAREST, image_file, mistakes


def test_mistakes_stand_beside_the_nearest_of_the_class_they_are_taken_for() -> None:
    snapshot = random_snapshot()
    rows = list(range(len(snapshot.items)))
    shown = mistakes(snapshot, rows)
    wrong = [row for row in rows if snapshot.taken_for[row] != snapshot.labels[row]]
    assert len(shown) == min(MISTAKES, len(wrong)) > 3
    assert {one.row for one in shown} <= set(wrong)
    firsts = [one.nearest[0][1] for one in shown]
    assert firsts == sorted(firsts, reverse=True)
    for row, nearest in shown:
        others = [other for other in rows if snapshot.labels[other] == snapshot.taken_for[row]]
        scores = sorted((float(snapshot.vectors[row] @ snapshot.vectors[other]) for other in others), reverse=True)
        assert [round(score, 5) for _, score in nearest] == [round(score, 5) for score in scores[:NEAREST]]
        assert all(score <= 1 for _, score in nearest)


def test_the_size_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (30, 20)).save(path)
    assert image_file(str(path)) == (30, 20, path.stat().st_size)
    path.write_text("no image")
    assert image_file(str(path)) is None
    assert image_file(str(tmp_path / "missing.png")) is None
