from pathlib import Path

import pytest

from softtriple.errors import UserError
from softtriple.training.choose import Trial
from softtriple.training.trials import Gain, read_gains, write_gains


def test_gains_are_kept_as_the_mean_over_splits(tmp_path: Path) -> None:
    splits = [{(0, 0.0): Trial(0.0, 0.0), (2, 0.5): Trial(recall, 0.1)} for recall in (0.02, 0.04)]
    write_gains(tmp_path / "trials.json", splits)
    start, gained = read_gains(tmp_path / "trials.json")
    assert start == Gain(0, 0.0, 0.0, 0.0)
    assert gained == pytest.approx((2, 0.5, 0.03, 0.1))


def test_a_run_without_trials_and_one_with_another_file(tmp_path: Path) -> None:
    assert read_gains(tmp_path / "trials.json") == ()
    (tmp_path / "trials.json").write_text('{"rows": [[1]]}')
    with pytest.raises(UserError, match="not a table of trials"):
        read_gains(tmp_path / "trials.json")
