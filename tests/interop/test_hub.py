import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.interop.hub_server import TOKEN, Hub, serving

import softtriple as st
from softtriple.errors import UserError
from softtriple.interop.hub import pull, push
from softtriple.training import Run

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The stand-in as the hub, logged in, with a cache of its own."""
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf-cache"))
        yield running
        huggingface_hub.close_session()
        assert running.unknown == []


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small run on vectors in a file."""
    folder = tmp_path_factory.mktemp("hub")
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    values = 4 * random.standard_normal((6, 8))[labels] + random.standard_normal((60, 8))
    np.savez(folder / "vectors.npz", vectors=values.astype(np.float32), labels=labels)
    st.train(str(folder / "vectors.npz"), out=folder / "run", dim=4, epochs=2)
    (folder / "run" / "report.html").write_text("pictures of the data")
    return folder / "run"


def edited(hub: Hub, repo: str, name: str, content: bytes) -> None:
    hub.repositories[repo][name] = content


def test_a_run_is_pushed_and_pulled(hub, run, tmp_path):
    assert push(run, "me/vectors") == f"{hub.address}/me/vectors"
    files = hub.repositories["me/vectors"]
    assert {
        "README.md",
        "config.toml",
        "report.json",
        "encoder/model.safetensors",
        "centers.safetensors",
    } <= files.keys()
    pull("me/vectors", tmp_path / "pulled")
    ours, theirs = Run.load(run), Run.load(tmp_path / "pulled")
    items = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_array_equal(ours.encoder.embed(items), theirs.encoder.embed(items))
    assert ours.report == theirs.report
    assert ours.encoder.fingerprint() == theirs.encoder.fingerprint()
    np.testing.assert_array_equal(ours.centers(), theirs.centers())


def test_an_encoder_comes_from_the_hub_by_name(hub, run):
    push(run, "me/vectors")
    items = np.ones((2, 8), dtype=np.float32)
    from_hub = st.Encoder.from_pretrained("me/vectors")
    np.testing.assert_array_equal(from_hub.embed(items), st.Encoder.load(run).embed(items))
    commit = hub.sha("me/vectors")
    assert st.Encoder.from_pretrained("me/vectors", revision=commit).dim == 4
    with pytest.raises(UserError, match="cannot be downloaded"):
        st.Encoder.from_pretrained("me/vectors", revision="no-such-branch")


def test_an_encoder_beside_the_card_is_found(hub, run):
    push(run, "me/vectors")
    files = hub.repositories["me/vectors"]
    hub.repositories["me/bare"] = {
        name.removeprefix("encoder/"): data for name, data in files.items() if name.startswith("encoder/")
    }
    assert st.Encoder.from_pretrained("me/bare").dim == 4


def test_a_folder_is_loaded_without_the_hub(run):
    assert st.Encoder.from_pretrained(str(run)).dim == 4
    with pytest.raises(UserError, match="has no revision"):
        st.Encoder.from_pretrained(str(run), revision="main")


def test_nothing_of_the_data_or_the_machine_is_pushed(hub, run):
    data, exclude, second = run.parent / "vectors.npz", run.parent / "exclude.csv", run.parent / "second"
    exclude.write_text("split,row\ntrain,0\n")
    st.train(str(data), start=run, exclude=str(exclude), epochs=0, out=second)
    push(second, "me/vectors")
    files = hub.repositories["me/vectors"]
    assert "report.html" not in files
    assert not [name for name in files if name.startswith("checkpoints")]
    leaks = [name for name, data in files.items() if str(run.parent).encode() in data]
    assert leaks == []


def test_a_second_push_removes_what_the_run_no_longer_has(hub, run):
    push(run, "me/vectors", private=True)
    assert hub.private == {"me/vectors"}
    edited(hub, "me/vectors", "calibration.json", b"{}")
    edited(hub, "me/vectors", "encoder/old.json", b"{}")
    edited(hub, "me/vectors", "notes.md", b"mine")
    push(run, "me/vectors")
    files = hub.repositories["me/vectors"]
    assert "calibration.json" not in files
    assert "encoder/old.json" not in files
    assert files["notes.md"] == b"mine"


def test_the_encoder_can_come_along_as_onnx(hub, run, tmp_path, monkeypatch):
    monkeypatch.setattr("softtriple.interop.hub.export_encoder", lambda encoder, path, **_: path.write_bytes(b"ONNX"))
    push(run, "me/vectors", onnx=True, licence="apache-2.0")
    files = hub.repositories["me/vectors"]
    assert b'license: "apache-2.0"' in files["README.md"]
    assert files["encoder.onnx"] == b"ONNX"
    pull("me/vectors", tmp_path / "pulled")
    assert (tmp_path / "pulled" / "encoder.onnx").is_file()


def test_a_card_of_a_person_is_pushed_as_it_is(hub, run):
    push(run, "me/vectors")
    generated = hub.repositories["me/vectors"]["README.md"].decode()
    assert "me/vectors" in generated
    written = (run / "README.md").read_text()
    own = re.sub("<!-- Written by softtriple.*?-->", "My words.", written)
    (run / "README.md").write_text(own)
    push(run, "me/vectors")
    (run / "README.md").write_text(written)
    assert hub.repositories["me/vectors"]["README.md"].decode() == own


def test_without_a_login_the_message_says_how(hub, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(UserError, match=r"me/vectors: cannot be written.*hf auth login"):
        push(run, "me/vectors")


@pytest.mark.parametrize("name", ["vectors", "me/vectors/more", "../etc", "me/../you", "https://host/me", ""])
def test_a_name_that_is_no_repository(name, run, tmp_path):
    with pytest.raises(UserError, match="expected USER/NAME"):
        push(run, name)
    with pytest.raises(UserError, match="expected USER/NAME"):
        pull(name, tmp_path / "pulled")
    with pytest.raises(UserError, match="expected USER/NAME"):
        st.Encoder.from_pretrained(name or "nothing")


def test_what_is_missing_is_named(hub, run, tmp_path):
    with pytest.raises(UserError, match="me/nothing: cannot be downloaded"):
        pull("me/nothing", tmp_path / "pulled")
    hub.repositories["me/other"] = {"README.md": b"---\n---\n", "pytorch_model.bin": b"pickle"}
    with pytest.raises(UserError, match=r"me/other .*config\.toml is missing"):
        pull("me/other", tmp_path / "pulled")
    with pytest.raises(UserError, match="no encoder here"):
        st.Encoder.from_pretrained("me/other")
    push(run, "me/vectors")
    del hub.repositories["me/vectors"]["encoder/encoder.json"]
    with pytest.raises(UserError, match="no encoder here"):
        pull("me/vectors", tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="already exists"):
        pull("me/vectors", tmp_path / "mine")


def test_an_unfinished_run_is_not_pushed(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text((run / "config.toml").read_text())
    with pytest.raises(UserError, match="no encoder here"):
        push(tmp_path / "run", "me/vectors")


def test_files_of_strangers_stay_data(hub, run, tmp_path):
    """Only the files of a run are fetched, and changed ones are refused, not run."""
    push(run, "me/vectors")
    edited(hub, "me/vectors", "setup.py", b"raise SystemExit")
    edited(hub, "me/vectors", "encoder/pytorch_model.bin", b"a pickle")
    edited(hub, "me/vectors", "checkpoints/0.pt", b"a pickle")
    pull("me/vectors", tmp_path / "pulled")
    assert not (tmp_path / "pulled" / "setup.py").exists()
    assert not (tmp_path / "pulled" / "checkpoints").exists()
    described = json.loads(hub.repositories["me/vectors"]["encoder/encoder.json"])
    described["files"] = {"../../../secret": "0" * 64}
    edited(hub, "me/vectors", "encoder/encoder.json", json.dumps(described).encode())
    with pytest.raises(UserError, match="secret is missing"):
        st.Encoder.from_pretrained("me/vectors")
