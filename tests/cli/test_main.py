"""The command line as a person meets it: answers, sentences, exit status."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softtriple import Encoder
from softtriple.cli import main
from softtriple.training import Run
from softtriple.training.fit import row_batches


class Answer:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def softtriple(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["softtriple", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    values = 4 * random.standard_normal((6, 8))[labels] + random.standard_normal((60, 8))
    file = tmp_path / "vectors.npz"
    np.savez(file, vectors=values.astype(np.float32), labels=labels, class_names=np.array(list("abcdef")))
    return file


def train_small(softtriple, vectors: Path, out: Path, *more: str) -> Answer:
    return softtriple("train", vectors, "--out", out, "--dim", 4, "--epochs", 2, *more)


def test_train_evaluate_embed(softtriple, vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained = train_small(softtriple, vectors, out, "--json")
    assert trained.status == 0, trained.err
    report = json.loads(trained.out)
    assert report["run"] == str(out)
    assert 0 <= report["recall"]["1"] <= 1
    assert "<html" in (out / "report.html").read_text()

    evaluated = softtriple("evaluate", out, "--json")
    assert evaluated.status == 0, evaluated.err
    again = json.loads(evaluated.out)
    assert again["recall"] == report["recall"]
    assert again["map_at_r"] == report["map_at_r"]

    embedded = softtriple("embed", out, vectors, "--out", tmp_path / "embedded.npz")
    assert embedded.status == 0, embedded.err
    assert "60 embeddings" in embedded.err
    with np.load(tmp_path / "embedded.npz") as file:
        assert file["vectors"].shape == (60, 4)
        np.testing.assert_allclose(np.linalg.norm(file["vectors"], axis=1), 1, rtol=1e-5)

    from_file = softtriple("evaluate", tmp_path / "embedded.npz")
    assert from_file.status == 0, from_file.err
    assert "Recall@1" in from_file.out
    assert "60 queries of 6 classes" in from_file.out

    across = softtriple("evaluate", tmp_path / "embedded.npz", "--gallery", tmp_path / "embedded.npz",
                        "--recall-at", "1,60", "--json")  # fmt: skip
    assert across.status == 0, across.err
    assert json.loads(across.out)["recall"] == {"1": 1.0, "60": 1.0}, "every item finds itself"
    for more in (["--recall-at", "1"], ["--gallery", tmp_path / "embedded.npz"]):
        assert softtriple("evaluate", out, *more).status == 2, "a run has those of its data"

    # Their vectors are not those that the encoder takes.
    for arguments in (["embed", out, tmp_path / "embedded.npz", "--out", tmp_path / "twice.npz"],
                      ["evaluate", out, "--data", tmp_path / "embedded.npz"]):  # fmt: skip
        misfit = softtriple(*arguments)
        assert misfit.status == 1
        assert "the data have 4" in misfit.err
        assert "Traceback" not in misfit.err


def test_embed_after_an_interruption(softtriple, vectors: Path, tmp_path: Path, monkeypatch) -> None:
    train_small(softtriple, vectors, tmp_path / "run")
    command = ["embed", tmp_path / "run", vectors, "--out", tmp_path / "out.npz", "--precision", "bfloat16"]
    with monkeypatch.context() as patch:
        patch.setattr("softtriple.training.embedding.write_vectors", interrupt)
        stopped = softtriple(*command)
    assert stopped.status == 130
    assert "same command" in stopped.err
    assert (tmp_path / "out.npz.partial").is_dir()
    assert not (tmp_path / "out.npz").exists()
    continued = softtriple(*command)
    assert continued.status == 0, continued.err
    assert "out.npz.partial" in continued.err
    assert not (tmp_path / "out.npz.partial").exists()
    softtriple("embed", tmp_path / "run", vectors, "--out", tmp_path / "whole.npz", "--precision", "bfloat16")
    with np.load(tmp_path / "out.npz") as file, np.load(tmp_path / "whole.npz") as whole:
        np.testing.assert_array_equal(file["vectors"], whole["vectors"])


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_embed_reads_a_table_with_its_own_columns(softtriple, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (8, 36, 36, 3), dtype=np.uint8)
    for row, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{row}.png")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["file,kind", *(f"{row}.png,{row % 4}" for row in range(8))]))
    columns = ("--set", "data.path=file", "--set", "data.label=kind")
    out = tmp_path / "run"
    trained = softtriple("train", table, "--out", out, "--backbone", "conv-small", "--epochs", 1, *columns)
    assert trained.status == 0, trained.err
    embedded = softtriple("embed", out, table, "--out", tmp_path / "embedded.npz", *columns)
    assert embedded.status == 0, embedded.err
    assert "8 embeddings" in embedded.err
    with np.load(tmp_path / "embedded.npz") as file:
        by_hand = Encoder.load(out).embed(file["paths"].tolist())
        np.testing.assert_allclose(by_hand, file["vectors"], atol=1e-6)


def test_calibrate_and_search_for_the_unknown(softtriple, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 8)
    values = 4 * random.standard_normal((16, 8))[labels] + random.standard_normal((128, 8))
    names = np.array([f"class {label}" for label in range(16)])
    data, run, store = tmp_path / "data.npz", tmp_path / "run", tmp_path / "store"
    np.savez(data, vectors=values.astype(np.float32), labels=labels, class_names=names)
    assert train_small(softtriple, data, run).status == 0
    first = json.loads((run / "calibration.json").read_text())
    assert first["source"] == "test classes"
    assert len(first["classes"]) == 8
    assert "None of these" in (run / "report.html").read_text()

    made = softtriple("calibrate", run, "--far", 0.2, "--json")
    assert made.status == 0, made.err
    again = json.loads((run / "calibration.json").read_text())
    assert json.loads(made.out) == again
    assert (again["level"], again["classes"]) == (0.2, first["classes"])
    assert again["threshold"] < first["threshold"]
    assert "<svg" in (run / "calibration.svg").read_text()
    assert f"below {again['threshold']:.3f}" in (run / "report.html").read_text()
    other = softtriple("calibrate", run, "--data", data, "--frr", 0.1)
    assert other.status == 0, other.err
    assert json.loads((run / "calibration.json").read_text())["wanted"] == "false_reject"

    assert softtriple("index", run, data, "--store", store, "--split", "train").status == 0
    asked = [f"row:{row}" for row in range(0, 64, 4)]
    found = softtriple("search", run, *asked, "--store", store, "--unknown", "reject", "--json")
    answers = json.loads(found.out)["queries"]
    assert not any(answer["known"] for answer in answers if not answer["hits"])
    assert sum(not answer["known"] for answer in answers) > len(answers) / 2, "test classes are not in the store"
    flagged = softtriple("search", run, *asked, "--store", store)
    assert flagged.out.count("none of these") == sum(not answer["known"] for answer in answers)
    assert "probability" in flagged.out


def test_index_search_centers(softtriple, vectors: Path, tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    assert train_small(softtriple, vectors, run).status == 0
    indexed = softtriple("index", run, vectors, "--store", store, "--check", "--json")
    assert indexed.status == 0, indexed.err
    told = {"store": str(store), "added": 60, "updated": 0, "unchanged": 0, "items": 60, "classes": 6}
    told |= {"moved": 0, "added_classes": 0}
    assert json.loads(indexed.out) == {**told, "recall_at_10": 1.0}

    found = softtriple("search", run, "row:0", "row:7", "--store", store, "-k", 3, "--json")
    assert found.status == 0, found.err
    answers = json.loads(found.out)["queries"]
    assert [answer["query"] for answer in answers] == ["row:0", "row:7"]
    for hits in (answer["hits"] for answer in answers):
        assert len(hits) == 3
        assert hits[0]["score"] == pytest.approx(1, abs=1e-6)
        assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    shown = softtriple("search", run, "row:0", "--store", store, "--class", "c", "--exact")
    assert shown.status == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[1].split() == ["rank", "score", "class", "item"]
    assert [line.split()[2] for line in lines[2:]] == ["c"] * 10
    few = softtriple("search", run, "row:0", "--store", store, "--min-score", 0.999, "--json")
    (answer,) = json.loads(few.out)["queries"]
    assert min(hit["score"] for hit in answer["hits"]) >= 0.999
    assert answer["known"] is answer["threshold"] is answer["hits"][0]["probability"] is None
    assert answer["vote"]["class_name"] == answer["hits"][0]["class_name"]
    assert answer["by_centers"]["class_name"] in "abcdef"

    told = softtriple("centers", run, "--out", tmp_path / "centers.svg", "--json")
    assert told.status == 0, told.err
    classes = set(json.loads(told.out)["classes"])
    assert len(classes) == 3, "half of them are trained on"
    assert classes < set("abcdef")
    assert "<svg" in (tmp_path / "centers.svg").read_text()
    assert "distinct on average" in softtriple("centers", run).out

    deleted = softtriple("index", run, vectors, "--store", store, "--split", "test", "--delete")
    assert deleted.out == f"{store}: deleted 30\n"

    for arguments, status, sentence in [
        (["search", run, "row:0", "--store", tmp_path / "nowhere"], 1, "there is no store here"),
        (["search", run, "row:99", "--store", store], 1, "the run has 30 test items"),
        (["search", run, "row:0", "--store", store, "--class", "zebra"], 1, "there is no class 'zebra'"),
        (["search", run, "row:0"], 2, "--store"),
        (["search", run, "row:0", "--store", store, "--unknown", "reject"], 1, "softtriple calibrate"),
        (["calibrate", run], 1, "--data"),
        (["calibrate", run, "--far", 2], 1, "far = 2"),
        (["calibrate", run, "--far", 0.1, "--frr", 0.1], 1, "far or frr"),
        (["calibrate", run, "--set", "data.label=x"], 2, "--data"),
        (["search", run, "row:0", "--store", store, "-k", 0], 2, "-k"),
        (["index", run, vectors, "--store", store, "--split", "half"], 2, "--split"),
        (["index", run, vectors, "--store", store, "--delete", "--check"], 2, "--delete"),
        (["centers", tmp_path], 1, "not a run directory"),
        (["train", vectors, "--out", tmp_path / "none", "--resume"], 1, "none does not exist"),
    ]:
        answer = softtriple(*arguments)
        assert (answer.status, answer.out) == (status, "")
        assert sentence in answer.err
        assert "Traceback" not in answer.err


def test_a_finished_run_resumes_to_its_report(softtriple, vectors: Path, tmp_path: Path) -> None:
    first = train_small(softtriple, vectors, tmp_path / "run", "--json")
    again = softtriple("train", vectors, "--out", tmp_path / "run", "--resume", "--json")
    assert again.status == 0, again.err
    assert json.loads(again.out)["recall"] == json.loads(first.out)["recall"]


def test_ctrl_c_keeps_the_state_and_says_how_to_go_on(
    softtriple, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("--set", "train.batch_size=8", "--set", "train.seed=7")
    whole, broken = tmp_path / "whole", tmp_path / "bro ken"
    assert train_small(softtriple, vectors, whole, *small).status == 0

    def interrupted(loss: object, labels: object, config: object, epoch: int) -> Iterator[np.ndarray]:
        for number, rows in enumerate(row_batches(loss, labels, config, epoch)):
            if (epoch, number) == (1, 2):
                signal.raise_signal(signal.SIGINT)
            yield rows

    with monkeypatch.context() as patch:
        patch.setattr("softtriple.training.fit.row_batches", interrupted)
        stopped = train_small(softtriple, vectors, broken, *small)
    assert stopped.status == 130
    assert "Traceback" not in stopped.err
    assert not (broken / "encoder").exists()
    (advice,) = re.findall("continue with: (.*)", stopped.err)
    resumed = softtriple(*shlex.split(advice)[1:])
    assert resumed.status == 0, resumed.err
    assert "resumed after epoch 1 of 2, batch 3" in resumed.err
    for file in ("encoder/model.safetensors", "centers.safetensors", "config.toml"):
        assert (broken / file).read_bytes() == (whole / file).read_bytes()


def test_train_from_a_run_and_compare_the_two(softtriple, vectors: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train_small(softtriple, vectors, first, "--set", "train.lr=0.01").status == 0
    continued = softtriple("train", vectors, "--out", second, "--from", first, "--epochs", 3)
    assert continued.status == 0, continued.err
    assert "centres of 3 classes kept, 0 classes new" in continued.err
    assert "first, as it was" in continued.out
    settings = (second / "config.toml").read_text()
    assert f'start = "{first}"' in settings
    assert all(line in settings.splitlines() for line in ("epochs = 3", "lr = 0.01", "dim = 4"))

    compared = softtriple("compare", first, second)
    assert compared.status == 0, compared.err
    assert re.search(r"Recall@1 .* \(.* to .*\)", compared.out)
    told = json.loads(softtriple("compare", first, second, "--json").out)
    assert set(told["runs"]) == {str(first), str(second)}
    assert set(told["differences"][str(second)]) == {"recall@1", "map_at_r"}
    assert told["notes"] == []


def test_config_file_and_settings(softtriple, vectors: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('[model]\ndim = 5\n[train]\nepochs = 1\n[loss]\nname = "softmax-norm"\n')
    answer = softtriple("train", vectors, "--out", tmp_path / "run", "--config", config, "--set", "train.seed=3")
    assert answer.status == 0, answer.err
    resolved = (tmp_path / "run" / "config.toml").read_text()
    for line in ("dim = 5", "epochs = 1", "seed = 3", 'name = "softmax-norm"', 'backbone = "linear"'):
        assert line in resolved


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "nowhere", "--out", "RUN"], "nowhere: no such file or folder"),
        (["train", "cup:here", "--out", "RUN"], "unknown benchmark 'cup'"),
        (["train", "cub:nowhere", "--out", "RUN"], "nowhere"),
        (["train", "VECTORS", "--out", "RUN", "--loss", "triple"], "unknown loss 'triple'; did you mean"),
        (["train", "VECTORS", "--out", "RUN", "--backbone", "resnet"], "unknown backbone 'resnet'; choose from"),
        (["train", "VECTORS", "--out", "RUN", "--set", "train.epoch=1"], "'train.epoch'; did you mean 'train.epochs'"),
        (["train", "VECTORS", "--out", "RUN", "--config", "none.toml"], "none.toml"),
        (["train", "VECTORS", "--out", "RUN", "--dim", str(2**62)], "out of memory"),
        (["evaluate", "nothing.npz"], "nothing.npz: no such run directory or file"),
        (["evaluate", "."], "not a run directory"),
        (["evaluate", "VECTORS", "--recall-at", "0"], "recall_at = (0,)"),
        (["evaluate", "VECTORS", "--gallery", "nothing.npz"], "nothing.npz: no such file"),
        (["embed", "RUN", "VECTORS", "--out", "x.npz"], "not a run directory"),
    ],
)
def test_what_a_user_got_wrong_is_one_sentence(
    softtriple, vectors: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    places = {"VECTORS": str(vectors), "RUN": str(tmp_path / "run")}
    answer = softtriple(*[places.get(argument, argument) for argument in arguments])
    assert answer.status == 1
    assert sentence in answer.err
    assert answer.err.startswith("softtriple: ") or "\nsofttriple: " in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_a_corrected_command_may_use_the_same_directory(softtriple, vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert softtriple("train", tmp_path / "nowhere", "--out", out).status == 1
    assert train_small(softtriple, vectors, out, "--set", "loss.options.gamma=0.0").status == 1
    answer = train_small(softtriple, vectors, out)
    assert answer.status == 0, answer.err


def test_what_the_system_refuses_is_a_sentence_without_a_number(softtriple, vectors: Path, tmp_path: Path) -> None:
    answer = train_small(softtriple, vectors, tmp_path / ("x" * 300))
    assert answer.status == 1
    assert answer.err.endswith("xxx: File name too long\n")
    assert "Errno" not in answer.err


@pytest.mark.parametrize("verb", ["embed", "evaluate", "index", "search"])
@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_machine_without_threads_or_memory_is_one_sentence(
    softtriple, vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, error: Exception
) -> None:
    def exhausted(*arguments: object, **options: object) -> None:
        raise error

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    monkeypatch.setattr(Run, "load", exhausted)
    options = {"embed": ["--out", "x.npz"], "index": ["--store", "s"], "search": ["--store", "s"]}
    data = [] if verb == "evaluate" else [vectors]
    answer = softtriple(verb, tmp_path / "run", *data, *options.get(verb, []))
    assert (answer.status, answer.out) == (1, "")
    assert re.fullmatch(r"softtriple: .*out of memory.*\n", answer.err)


def test_unreadable_files_stop_or_are_skipped(softtriple, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for label in range(4):
        (data / str(label)).mkdir(parents=True)
        for row in range(3):
            picture = np.random.default_rng(row).integers(0, 255, (36, 36, 3), dtype=np.uint8)
            Image.fromarray(picture).save(data / str(label) / f"{row}.png")
    (data / "1" / "broken\n\x1b[31m.png").write_text("no picture")
    small = ("--backbone", "conv-small", "--epochs", 1, "--dim", 4)
    stopped = softtriple("train", data, "--out", tmp_path / "stopped", *small)
    assert stopped.status == 1
    assert r"broken\n\x1b[31m.png': not a readable image" in stopped.err.splitlines()[-1]
    assert "--on-error skip" in stopped.err.splitlines()[-1]
    skipped = softtriple("train", data, "--out", tmp_path / "run", *small, "--on-error", "skip")
    assert skipped.status == 0, skipped.err
    assert "1 of 7 images" in skipped.err
    out = tmp_path / "embedded.npz"
    assert softtriple("embed", tmp_path / "run", data, "--out", out, "--on-error", "stop").status == 1
    embedded = softtriple("embed", tmp_path / "run", data, "--out", out)  # the run remembers how it read its data
    assert embedded.status == 0, embedded.err
    with np.load(out) as file:
        assert [Path(path).parent.name for path in file["paths"]] == file["class_names"][file["labels"]].tolist()
        assert len(file["paths"]) == 12


def test_a_folder_may_have_any_name(softtriple, vectors: Path, tmp_path: Path) -> None:
    data = vectors.rename(tmp_path / 'näme "😀"\x7f.npz')
    answer = train_small(softtriple, data, tmp_path / "run")
    assert answer.status == 0, answer.err
    assert softtriple("evaluate", tmp_path / "run").status == 0


def test_a_run_is_not_overwritten(softtriple, vectors: Path, tmp_path: Path) -> None:
    assert train_small(softtriple, vectors, tmp_path / "run").status == 0
    answer = train_small(softtriple, vectors, tmp_path / "run")
    assert answer.status == 1
    assert "already exists" in answer.err
    assert "--resume" in answer.err


def test_the_demo_does_not_overwrite(softtriple, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    answer = softtriple("demo", "--out", tmp_path)
    assert answer.status == 1
    assert f"{tmp_path} already exists" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["train"],
        ["train", "digits"],
        ["nothing"],
        ["train", "digits", "--epochs", "x"],
        ["train", "digits", "--out", "RUN", "--preset", "best"],
        ["reproduce", "table1", "--out", "DIR", "--protocol", "half"],
        ["export", "RUN", "--out", "FILE", "--format", "h5"],
        ["evaluate", "vectors.npz", "--recall-at", "1,ten"],
        ["compare", "RUN"],
        ["train", "digits", "--out", "RUN", "--from", "RUN", "--config", "FILE"],
        ["train", "digits", "--out", "RUN", "--set", "dataset=glyphs"],
        ["index", "RUN", "DATA", "--store", "STORE", "--delete", "--add-classes"],
    ],
)
def test_wrong_usage_is_status_2(softtriple, arguments: list[str]) -> None:
    assert softtriple(*arguments).status == 2


def test_help_fits_the_terminal_and_names_what_works(softtriple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    verbs = softtriple("--help").out.partition("Commands:")[2].splitlines()
    assert len(verbs) == 1 + 17
    assert all(len(line) < 80 and not line.endswith(("...", "…")) for line in verbs)
    for verb in ("evaluate", "embed", "index"):
        told = softtriple(verb, "--help").out
        assert "data.label=kind" in told
        assert "train.epochs" not in told
    assert "{RUN} {QUERY}...\n" in softtriple("search", "--help").out


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, softtriple.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_info(softtriple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path))
    for name, used in (("images-" + "a" * 16, 0), ("trunk-" + "b" * 16, time.time())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"123")
        os.utime(tmp_path / name, (used, used))
    answer = softtriple("info", "--json")
    assert answer.status == 0
    told = json.loads(answer.out)
    assert told["backbones"]["efficientnet-lite0"] == "ImageNet weights installed"
    assert "torch" in told["versions"]
    assert (told["cache"]["folder"], told["cache"]["bytes"]) == (str(tmp_path), 6)
    assert {kind: one["bytes"] for kind, one in told["cache"]["kinds"].items()} == {"images": 3, "trunk": 3}
    pruned = softtriple("info", "--prune", 30)
    assert pruned.status == 0, pruned.err
    assert "removed: 1, 0.00 GB" in pruned.out
    assert [path.name[:5] for path in tmp_path.iterdir()] == ["trunk"]


def test_info_says_whether_weights_are_downloaded(softtriple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / "bn_inception-52deb4733.pth"
    before = json.loads(softtriple("info", "--json").out)["backbones"]["bn-inception"]
    file.parent.mkdir(parents=True)
    file.touch()
    after = json.loads(softtriple("info", "--json").out)["backbones"]["bn-inception"]
    assert "softtriple download bn-inception" in before
    assert str(file) in before
    assert after == f"ImageNet weights in {file}"


@pytest.mark.slow
def test_demo(softtriple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("demo", "demo-2"):
        answer = softtriple("demo")
        assert answer.status == 0, answer.err
        assert "SoftTriple, K = 10" in answer.out
        page = (tmp_path / "runs" / folder / "report.html").read_text(encoding="utf-8")
        assert "Retrieved examples" in page


def test_traceback_shows_where_an_error_was_raised(softtriple, tmp_path: Path) -> None:
    plain = softtriple("train", tmp_path / "nowhere", "--out", tmp_path / "run")
    shown = softtriple("--traceback", "train", tmp_path / "nowhere", "--out", tmp_path / "run")
    assert plain.status == shown.status == 1
    assert "Traceback" not in plain.err
    assert "Traceback" in shown.err


def test_the_baseline_is_printed_beside_the_result(softtriple, vectors: Path, tmp_path: Path) -> None:
    answer = train_small(softtriple, vectors, tmp_path / "run")
    assert "the vectors themselves, 8-d" in answer.out
    assert "difference" in answer.out
    told = json.loads(softtriple("evaluate", tmp_path / "run", "--json").out)
    assert told["baselines"]["the vectors themselves, 8-d"]["num_queries"] == told["num_queries"]


def test_download(softtriple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typo = softtriple("download", "cubs")
    assert typo.status == 1
    assert "did you mean 'cub'" in typo.err
    (tmp_path / "inshop").mkdir()
    broken = softtriple("download", "inshop", "--to", tmp_path)
    assert broken.status == 1
    assert "list_eval_partition.txt" in broken.err
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("softtriple.models.backbones.bn_inception.BN_INCEPTION_URL", "http://127.0.0.1:1/net.pth")
    monkeypatch.setattr("softtriple.data.download.PAUSE", 0.0)
    gone = softtriple("download", "bn-inception")
    assert gone.status == 1
    assert "http://127.0.0.1:1/net.pth" in gone.err
    assert "licence" in gone.err


def test_several_widths(softtriple, vectors: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained = softtriple("train", vectors, "--out", out, "--dims", "2,4", "--epochs", 2)
    assert trained.status == 0, trained.err
    assert "first 2 dimensions: Recall@1" in trained.out
    assert "Shorter embeddings" in (out / "report.html").read_text()
    evaluated = json.loads(softtriple("evaluate", out, "--json").out)
    assert list(evaluated["prefixes"]) == ["2"]
    assert softtriple("train", vectors, "--out", tmp_path / "b", "--dims", "2;4").status == 2
    wrong = softtriple("train", vectors, "--out", tmp_path / "b", "--dims", "4,2")
    assert wrong.status == 1
    assert "64,128,512" in wrong.err
