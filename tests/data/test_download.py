import hashlib
import re
from pathlib import Path

import pytest
from tests.data.unreliable_server import Served, UnreliableServer, serving

from softtriple.data import download as downloading
from softtriple.data.download import DownloadError, RemoteFile, fetch
from softtriple.errors import UserError

CONTENT = bytes(range(256)) * 1000
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloading, "PAUSE", 0.0)
    with serving() as running:
        yield running


def remote(server: UnreliableServer, *paths: str, checksum: str | None = MD5, limit: int = 10**6) -> RemoteFile:
    urls = tuple(server.address + path for path in paths or ("/file",))
    return RemoteFile(name="file.bin", urls=urls, checksum=checksum, limit=limit)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_file_is_downloaded_once(server, tmp_path):
    server.files["/file"] = Served(CONTENT)
    progress = []
    path = fetch(remote(server), tmp_path / "new", progress=lambda *where: progress.append(where))
    assert path.read_bytes() == CONTENT
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert fetch(remote(server), tmp_path / "new") == path
    assert len(server.requests) == 1
    assert names(tmp_path / "new") == {"file.bin"}


def test_a_connection_that_breaks_off_is_continued(server, tmp_path):
    server.files["/file"] = Served(CONTENT, breaks=3)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    starts = [start for _, start in server.requests]
    assert starts == [0, 128_000, 192_000, 224_000]


def test_an_interrupted_download_continues_in_the_next_call(server, tmp_path):
    server.files["/file"] = Served(CONTENT)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(remote(server), tmp_path, progress=interrupt)
    received = (tmp_path / "file.bin.part").stat().st_size
    assert 0 < received < len(CONTENT)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/file", received)


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.files["/file"] = Served(CONTENT, ranges=False, breaks=1)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_another_mirror_continues_the_first(server, tmp_path):
    server.files["/file"] = Served(CONTENT, breaks=10**6, ranges=False)
    server.files["/copy"] = Served(CONTENT)
    assert fetch(remote(server, "/file", "/copy"), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/copy", 128_000)
    assert len(server.requests) == 2 + downloading.RETRIES


def test_a_slow_server_is_waited_for(server, tmp_path):
    server.files["/file"] = Served(CONTENT[:5000], chunk=50)
    checksum = f"md5:{hashlib.md5(CONTENT[:5000]).hexdigest()}"
    assert fetch(remote(server, checksum=checksum), tmp_path).read_bytes() == CONTENT[:5000]


def test_a_silent_server_is_left_for_the_next(server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "TIMEOUT", 0.1)
    server.files["/file"] = Served(CONTENT, breaks=10**6, stalls=True, ranges=False)
    server.files["/copy"] = Served(CONTENT)
    assert fetch(remote(server, "/file", "/copy"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_dead_link_is_left_at_once(server, tmp_path, status):
    server.files["/file"] = Served(b"gone", status=status)
    server.files["/copy"] = Served(CONTENT)
    assert fetch(remote(server, "/file", "/copy"), tmp_path).read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/file", "/copy"]


def test_a_server_error_is_tried_again(server, tmp_path):
    server.files["/file"] = Served(b"", status=503)
    with pytest.raises(DownloadError, match="503"):
        fetch(remote(server), tmp_path)
    assert len(server.requests) == downloading.RETRIES


def test_a_host_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "PAUSE", 0.0)
    with serving() as server:
        file = remote(server)
    with pytest.raises(DownloadError, match=re.escape(file.urls[0])):
        fetch(file, tmp_path)


def test_the_wrong_file_is_not_kept(server, tmp_path):
    server.files["/file"] = Served(b"<html>Please sign in</html>")
    with pytest.raises(DownloadError, match=f"MD5 is [0-9a-f]{{32}}, published is {MD5[4:]}"):
        fetch(remote(server), tmp_path)
    assert names(tmp_path) == set()
    server.files["/copy"] = Served(CONTENT)
    assert fetch(remote(server, "/file", "/copy"), tmp_path).read_bytes() == CONTENT


def test_a_part_of_another_file_is_replaced(server, tmp_path):
    server.files["/file"] = Served(CONTENT)
    (tmp_path / "file.bin.part").write_bytes(b"another file")
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"too long")
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_complete_part_needs_no_more_bytes(server, tmp_path):
    server.files["/file"] = Served(CONTENT)
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/file", len(CONTENT))]


@pytest.mark.parametrize("announce", [True, False])
def test_an_answer_without_end_is_refused(server, tmp_path, announce):
    server.files["/file"] = Served(CONTENT, announce=announce)
    with pytest.raises(DownloadError, match="more than 0 MB"):
        fetch(remote(server, limit=100_000), tmp_path)
    assert names(tmp_path) == set()


def test_without_a_checksum_only_the_same_version_is_continued(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"of an earlier call")
    server.files["/file"] = Served(CONTENT, etag='"one"', breaks=1)
    assert fetch(remote(server, checksum=None), tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/file", 0), ("/file", 128_000)]
    server.files["/other"] = Served(CONTENT, breaks=1)  # nothing identifies the version
    assert fetch(remote(server, "/other", checksum=None), tmp_path / "b").read_bytes() == CONTENT
    assert server.requests[2:] == [("/other", 0), ("/other", 0)]


def test_a_file_in_place_is_verified(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(UserError, match=r"file\.bin: its MD5 is .* Move it elsewhere"):
        fetch(remote(server), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"
    assert server.requests == []


def test_without_a_link_there_is_nothing_to_try(tmp_path):
    with pytest.raises(DownloadError, match=r"file\.bin: download failed \(it has no direct link\)"):
        fetch(RemoteFile(name="file.bin", urls=(), checksum=None, limit=1), tmp_path)


def test_a_full_disk_is_not_the_fault_of_the_server(server, tmp_path):
    server.files["/file"] = Served(CONTENT)
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"file\.bin\.part: cannot be written \(No space left"):
        fetch(remote(server), tmp_path)
    assert len(server.requests) == 1
