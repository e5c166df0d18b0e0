import hashlib
import io
import re
import tarfile
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.data import miniatures
from tests.data.unreliable_server import Served, UnreliableServer, serving

from softtriple.data import download, load_benchmark
from softtriple.data.sources import FOLDERS, SCHEMES, publications
from softtriple.data.sources.publications import PUBLICATIONS, Publication, get_benchmark, unpack
from softtriple.errors import UserError
from softtriple.progress import Reporter

QUIET = Reporter(quiet=True)
MAKERS = {
    "cub": miniatures.cub,
    "cars196": miniatures.cars_mat,
    "sop": miniatures.sop,
    "inshop": miniatures.inshop,
    "omniglot": miniatures.omniglot,
}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with serving() as running:
        yield running


def archives(name: str, folder: Path) -> dict[str, bytes]:
    """The files of a small copy of the benchmark, laid out as the publisher's."""
    root = MAKERS[name](folder / "copy")
    match name:
        case "cub":
            return {"CUB_200_2011.tgz": tgz({"attributes.txt": b"1 x", **content(root, "./CUB_200_2011/")})}
        case "cars196":
            images = {path: data for path, data in content(root, "").items() if path.endswith(".jpg")}
            return {"cars_annos.mat": (root / "cars_annos.mat").read_bytes(), "car_ims.tgz": tgz(images)}
        case "sop":
            return {"Stanford_Online_Products.zip": zipped(content(root, "Stanford_Online_Products/"))}
        case "inshop":
            files = content(root, "")
            partition = files.pop("Eval/list_eval_partition.txt")
            return {"list_eval_partition.txt": partition, "img.zip": zipped(files)}
        case _:
            return content(root, "")


def content(root: Path, prefix: str) -> dict[str, bytes]:
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {f"{prefix}{path.relative_to(root).as_posix()}": path.read_bytes() for path in paths}


def tgz(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("img/", b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def publish(monkeypatch, server: UnreliableServer, name: str, files: dict[str, bytes]) -> Publication:
    """Let ``name`` be published as ``files`` on ``server``, in one way."""
    way = []
    for part in PUBLICATIONS[name].ways[0]:
        data = files[part.file.name]
        server.files[f"/{part.file.name}"] = Served(data)
        urls = (f"{server.address}/{part.file.name}",) if part.file.urls else ()
        checksum = part.file.checksum and f"md5:{hashlib.md5(data).hexdigest()}"
        way.append(part._replace(file=replace(part.file, urls=urls, checksum=checksum)))
    publication = replace(PUBLICATIONS[name], ways=(tuple(way), *PUBLICATIONS[name].ways[1:]))
    monkeypatch.setitem(PUBLICATIONS, name, publication)
    monkeypatch.setitem(SCHEMES, name, partial(SCHEMES[name], expected=None))
    return publication


@pytest.mark.parametrize("name", ["cub", "cars196", "sop", "omniglot"])
def test_a_benchmark_is_downloaded_unpacked_and_found_by_name(name, server, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOFTTRIPLE_DATA", str(tmp_path / "data"))
    publication = publish(monkeypatch, server, name, archives(name, tmp_path))
    root = get_benchmark(name, reporter=Reporter())
    told = " ".join(capsys.readouterr().err.split())
    assert publication.licence in told
    assert publication.citation in told
    assert root == tmp_path / "data" / FOLDERS[name]
    assert len(load_benchmark(name, on_error="skip").train) > 0
    assert not [path for path in (root.parent / "downloads").iterdir() if not path.name.startswith(".")]
    asked = len(server.requests)
    assert get_benchmark(name, reporter=QUIET) == root
    assert len(server.requests) == asked, "what is there is only verified"


def test_a_publisher_without_links_gets_manual_steps(server, tmp_path, monkeypatch):
    files = archives("inshop", tmp_path)
    publication = publish(monkeypatch, server, "inshop", files)
    with pytest.raises(UserError, match=r"no direct link.*By hand.*Google Drive") as failure:
        get_benchmark("inshop", tmp_path / "data", reporter=QUIET)
    assert publication.page in str(failure.value)
    downloads = tmp_path / "data" / "downloads"
    assert str(downloads) in str(failure.value)
    for name, data in files.items():
        (downloads / name).write_bytes(data)
    root = get_benchmark("inshop", tmp_path / "data", reporter=QUIET)
    assert len(load_benchmark(f"inshop:{root}", on_error="skip").gallery) == 4
    assert {path.name for path in downloads.glob("[!.]*")} == set(files), "files of the user stay"
    assert server.requests == []


def test_another_archive_is_tried_if_the_first_is_gone(server, tmp_path, monkeypatch):
    files = archives("cars196", tmp_path)
    publication = publish(monkeypatch, server, "cars196", files)
    server.files.clear()
    whole = {f"cars196/{path}": data for path, data in content(tmp_path / "copy", "").items()}
    server.files["/CARS196.zip"] = Served(zipped(whole))
    (second,) = publication.ways[1]
    second = second._replace(file=replace(second.file, urls=(f"{server.address}/CARS196.zip",)))
    publication = replace(publication, ways=(publication.ways[0], (second,)))
    monkeypatch.setitem(PUBLICATIONS, "cars196", publication)
    root = get_benchmark("cars196", tmp_path / "data", reporter=QUIET)
    assert len(load_benchmark(f"cars196:{root}", on_error="skip").test) == 6


def test_dead_links_are_all_named(server, tmp_path, monkeypatch):
    publication = publish(monkeypatch, server, "cub", archives("cub", tmp_path))
    server.files.clear()
    with pytest.raises(UserError, match=r"404.*CUB_200_2011\.tgz") as failure:
        get_benchmark("cub", tmp_path / "data", reporter=QUIET)
    assert publication.page in str(failure.value)
    assert not (tmp_path / "data" / "CUB_200_2011").exists()


def test_an_incomplete_archive_is_not_presented_as_the_benchmark(server, tmp_path, monkeypatch):
    whole = SCHEMES["cub"]
    publish(monkeypatch, server, "cub", archives("cub", tmp_path))
    monkeypatch.setitem(SCHEMES, "cub", whole)
    with pytest.raises(UserError, match="incomplete copy"):
        get_benchmark("cub", tmp_path / "data", reporter=QUIET)
    assert not (tmp_path / "data" / "CUB_200_2011").exists()


@pytest.mark.parametrize("pack", [tgz, zipped])
@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil"])
def test_a_name_that_leads_out_of_the_folder(pack, name, tmp_path):
    archive = tmp_path / "archive"
    archive.write_bytes(pack({"good": b"good", name: b"evil"}))
    with pytest.raises(UserError, match="leads out of the folder"):
        unpack(archive, tmp_path / "folder")
    assert not (tmp_path / "evil").exists()
    assert not Path("/evil").exists()


def test_links_and_devices_are_left_out(tmp_path):
    packed = tmp_path / "archive.tgz"
    with tarfile.open(packed, "w:gz") as archive:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("device", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        archive.addfile(tarfile.TarInfo("link/file"))
    unpack(packed, tmp_path / "tar")
    assert [path.name for path in (tmp_path / "tar").rglob("*") if not path.is_dir()] == ["file"]
    packed = tmp_path / "archive.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("file", b"good")
    unpack(packed, tmp_path / "zip")
    assert [path.name for path in (tmp_path / "zip").rglob("*")] == ["file"]


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_an_archive_that_grows_too_much(pack, tmp_path):
    archive = tmp_path / "archive"
    archive.write_bytes(pack({"zeros": bytes(10**7)}))
    with pytest.raises(UserError, match=f"more than {publications.MAX_RATIO} times its size"):
        unpack(archive, tmp_path / "folder")
    assert sum(path.stat().st_size for path in (tmp_path / "folder").iterdir()) < 10**7


@pytest.mark.parametrize("pack", [tgz, zipped])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_archive(pack, share, tmp_path):
    whole = pack(content(miniatures.cub(tmp_path / "copy"), ""))
    (tmp_path / "archive").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match="archive: not a complete archive"):
        unpack(tmp_path / "archive", tmp_path / "folder")


def test_every_publication_is_complete():
    for name, publication in PUBLICATIONS.items():
        assert name in SCHEMES
        assert name in FOLDERS
        assert all((publication.title, publication.licence, publication.citation, publication.page))
        for part in (part for way in publication.ways for part in way):
            assert all(re.fullmatch(r"https?://\S+", url) for url in part.file.urls)
            assert part.file.checksum is None or re.fullmatch(r"md5:[0-9a-f]{32}", part.file.checksum)
