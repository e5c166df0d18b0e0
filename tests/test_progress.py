"""What a person is told while they wait."""

from types import SimpleNamespace

import pytest

from softtriple.progress import Reporter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    # Not time.monotonic itself: the event loop of a server that other tests share would stand still with it.
    monkeypatch.setattr("softtriple.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_time_left_of_a_resumed_task(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().task("training") as update:
        for done in (901, 921, 941):  # 900 were done by the run before, and 20 more take 20 seconds
            update(done, 1000, "loss 0.5")
            clock[0] += 20
    assert capsys.readouterr().err.splitlines() == [
        "training: 921 of 1000, about 79 s left; loss 0.5",
        "training: 941 of 1000, about 59 s left; loss 0.5",
    ]


def test_lines_are_seldom(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter().task("reading") as update:
        for done in range(100):
            update(done, 100)
            clock[0] += 1
    assert len(capsys.readouterr().err.splitlines()) == 9


def test_what_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter().note("a\x1b[31m [bold]b")
    assert capsys.readouterr().err == "a\\x1b[31m [bold]b\n"


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(quiet=True)
    reporter.note("hush")
    with reporter.task("training") as update:
        update(1, 2, "hush")
    captured = capsys.readouterr()
    assert captured.err + captured.out == ""
