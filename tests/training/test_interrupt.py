"""Ctrl-C is noted, a second one is obeyed at once, and what was there before comes back."""

import signal
import threading

import pytest

from softtriple.training.fit import asked_to_stop

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_noted_and_the_second_obeyed(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with asked_to_stop() as stopping:
        assert not stopping()
        signal.raise_signal(number)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_other_threads_have_no_signals() -> None:
    told: list[bool] = []

    def work() -> None:
        with asked_to_stop() as stopping:
            told.append(stopping())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == [False]
