"""The files of a target."""

import errno
from pathlib import Path

import pytest

from softtriple.papers.figures import draw_centers
from softtriple.papers.results import Result, write_result
from softtriple.papers.sheets import Sheet


def test_a_figure_on_a_full_disk_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(Sheet("a figure", (), (), ()), figure=draw_centers({"one": [1.0, 2.0]}, 2))
    files = write_result(result, tmp_path, "centers")
    before = [file.read_bytes() for file in files]

    def write_half(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(OSError, match=r"centers\.svg: cannot be written"):
        write_result(result, tmp_path, "centers")
    assert [file.read_bytes() for file in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)
