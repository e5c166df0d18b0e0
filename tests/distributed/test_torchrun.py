"""The command line under torchrun, as a person starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SETTINGS = ["train.batch_size=16", "model.dim=8", "loss.centers_per_class=2", "train.milestones=[]"]
LIMIT = 300.0  # seconds, of which it takes a few unless the machine is busy


def start(data: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    settings = [item for setting in SETTINGS for item in ("--set", setting)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "softtriple", "train", str(data), "--out", str(out), *settings, *more, "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    labels = np.repeat(np.arange(6), 10)
    values = 3 * np.random.default_rng(0).standard_normal((6, 8))[labels]
    values += np.random.default_rng(1).standard_normal(values.shape)
    np.savez(tmp_path / "vectors.npz", vectors=values.astype(np.float32), labels=labels)
    return tmp_path / "vectors.npz"


@pytest.mark.parametrize("victim", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_a_rank_that_dies_ends_the_job_and_the_run_goes_on_with_one_voice(
    data: Path, tmp_path: Path, victim: str
) -> None:
    out = tmp_path / "run"
    job = start(data, out, "--epochs", "100000")
    wait_for(lambda: len(list(out.glob("checkpoints/*.pt"))) == 2, job)
    os.kill(process_of(job.pid, victim), signal.SIGKILL)
    _, told = job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    assert "another process of the job has ended" in told
    assert "--resume" in told
    config = out / "config.toml"
    config.write_text(config.read_text().replace("epochs = 100000", f"epochs = {len(read_log(out)) + 2}"))
    done = len(read_log(out))
    job = start(data, out, "--resume")
    said, told = job.communicate(timeout=LIMIT)
    report = json.loads(said)  # one object, not two
    assert report["run"] == str(out)
    assert report["num_queries"] == 30
    assert told.count("memory of each of 2 ranks") == told.count("encoder: ") == 1
    assert [entry["epoch"] for entry in read_log(out)] == list(range(1, done + 3))


def test_ctrl_c_ends_the_job_with_one_sentence(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "run" / "checkpoints"
    job = start(data, tmp_path / "run", "--epochs", "100000")
    wait_for(lambda: any(kept.glob("*.pt")), job)
    job.send_signal(signal.SIGINT)  # torchrun passes it on to every rank
    said, told = job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    assert said == ""
    assert told.count("stopped; continue with: softtriple train") == 1


def read_log(out: Path) -> list[dict[str, int]]:
    return [
        entry for line in (out / "log.jsonl").read_text().splitlines() if "batch" not in (entry := json.loads(line))
    ]


def process_of(launcher: int, rank: str) -> int:
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise LookupError(f"no rank {rank} below {launcher}")


def wait_for(condition: object, job: "subprocess.Popen[str]", seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert job.poll() is None, job.communicate()[1]
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.01)
