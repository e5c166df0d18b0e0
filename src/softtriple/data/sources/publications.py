"""Where the benchmarks are published and under which licence; downloading, unpacking and verifying a copy."""

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, NamedTuple

from softtriple.data.cache import data_directory
from softtriple.data.download import DownloadError, Progress, RemoteFile, fetch
from softtriple.data.sources import FOLDERS, SCHEMES
from softtriple.errors import UserError
from softtriple.files import atomic_folder, remove_whole
from softtriple.progress import Reporter

MAX_RATIO = 5  # of unpacked to packed bytes; photographs hardly shrink
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)


class Part(NamedTuple):
    """A file of a benchmark. ``strip``: folders to drop from the names in an archive; None if it is not unpacked."""

    file: RemoteFile
    strip: int | None = None


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A benchmark as published. ``ways`` are lists of files that each give all of it, the best one first."""

    title: str
    ways: tuple[tuple[Part, ...], ...]
    page: str
    licence: str
    citation: str
    manual: str = ""  # what to do if there is no direct link


def _part(name: str, checksum: str | None, megabytes: int, *urls: str, strip: int | None = None) -> Part:
    return Part(RemoteFile(name=name, urls=urls, checksum=checksum, limit=megabytes * 10**6), strip)


# Size limits are generous: they only stop a response that never ends.
PUBLICATIONS: dict[str, Publication] = {
    "cub": Publication(
        title="CUB-200-2011: 11 788 photographs of 200 bird species",
        ways=(
            (
                _part(
                    "CUB_200_2011.tgz",
                    "md5:97eceeb196236b17998738112f37df78",
                    1_500,
                    "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
                    "https://s3.amazonaws.com/fast-ai-imageclas/CUB_200_2011.tgz",
                    strip=1,
                ),
            ),
        ),
        page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        licence="non-commercial research and education; the photographers hold the copyright",
        citation="Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset. "
        "Technical report CNS-TR-2011-001, California Institute of Technology, 2011",
    ),
    "cars196": Publication(
        title="Cars196: 16 185 photographs of 196 car models",
        ways=(
            (
                _part(
                    "cars_annos.mat",
                    "md5:b407c6086d669747186bd1d764ff9dbc",
                    10,
                    "http://ai.stanford.edu/~jkrause/car196/cars_annos.mat",
                    "http://imagenet.stanford.edu/internal/car196/cars_annos.mat",
                ),
                _part(
                    "car_ims.tgz",
                    "md5:d5c8f0aa497503f355e17dc7886c3f14",
                    4_000,
                    "http://ai.stanford.edu/~jkrause/car196/car_ims.tgz",
                    "http://imagenet.stanford.edu/internal/car196/car_ims.tgz",
                    strip=0,
                ),
            ),
            # No checksum is published for this one: the number of images and classes verifies it.
            (_part("CARS196.zip", None, 4_000, "http://ftp.cs.stanford.edu/cs/cvgl/CARS196.zip", strip=1),),
        ),
        page="https://www.kaggle.com/datasets/jutrera/stanford-car-dataset-by-classes-folder",
        licence="none is stated; published for research",
        citation="Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained Categorization. "
        "3dRR-13, 2013",
        manual="the publisher's links are often dead; copies are on Kaggle, also as one folder per class below train/ "
        "and test/, which `softtriple train cars196:PATH` reads as they are",
    ),
    "sop": Publication(
        title="Stanford Online Products: 120 053 photographs of 22 634 products",
        ways=(
            (
                _part(
                    "Stanford_Online_Products.zip",
                    "md5:7f73d41a2f44250d4779881525aea32e",
                    6_000,
                    "https://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                    "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
                    "https://drive.usercontent.google.com/download?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8"
                    "&export=download&authuser=0&confirm=t",
                    strip=1,
                ),
            ),
        ),
        page="https://cvgl.stanford.edu/projects/lifted_struct/",
        licence="none is stated; published for research",
        citation="Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding. "
        "CVPR 2016",
    ),
    "inshop": Publication(
        title="In-Shop Clothes Retrieval (DeepFashion): 52 712 photographs of 7 982 items",
        ways=((_part("list_eval_partition.txt", None, 50), _part("img.zip", None, 5_000, strip=0)),),
        page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        licence="non-commercial research only, by the agreement on its page",
        citation="Liu, Luo, Qiu, Wang, Tang: DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich "
        "Annotations. CVPR 2016",
        manual="accept the agreement on the page and open its Google Drive folder; take Img/img.zip and "
        "Eval/list_eval_partition.txt",
    ),
    "omniglot": Publication(
        title="Omniglot: 32 460 drawings of 1 623 characters",
        ways=(
            tuple(
                _part(
                    f"{name}.zip",
                    f"md5:{md5}",
                    50,
                    f"https://github.com/brendenlake/omniglot/raw/master/python/{name}.zip",
                    f"https://raw.githubusercontent.com/brendenlake/omniglot/master/python/{name}.zip",
                )
                for name, md5 in (
                    ("images_background", "68d2efa1b9178cc56df9314c21c6e718"),
                    ("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811"),
                )
            ),
        ),
        page="https://github.com/brendenlake/omniglot",
        licence="MIT",
        citation="Lake, Salakhutdinov, Tenenbaum: Human-level concept learning through probabilistic program "
        "induction. Science 350(6266), 2015",
    ),
}


def get_benchmark(name: str, to: Path | None = None, *, reporter: Reporter) -> Path:
    """The folder of the benchmark ``name`` in ``to`` or the data folder, downloaded if it is not there yet.

    Files that are already in the subfolder ``downloads`` are verified and used.
    """
    publication = PUBLICATIONS[name]
    base = (to or data_directory()).expanduser().absolute()
    root, downloads = base / FOLDERS[name], base / "downloads"
    reporter.note(publication.title)
    reporter.note(f"licence: {publication.licence}\ncite: {publication.citation}\npage: {publication.page}")
    if root.exists():
        reporter.note(f"{root} is already there")
        _verify(name, root, reporter)
        return root
    already_there = {path.name for path in downloads.glob("*")}
    parts = _fetch_one_way(publication, downloads, reporter)
    with atomic_folder(root) as temporary:
        for part in parts:
            source = downloads / part.file.name
            if part.strip is None:
                shutil.copyfile(source, temporary / source.name)
            else:
                with reporter.task(f"unpacking {source.name}") as update:
                    unpack(source, temporary, strip=part.strip, progress=update)
    try:
        _verify(name, root, reporter)
    except UserError:
        remove_whole(root)  # made above, from archives that are still there
        raise
    for part in parts:
        if part.file.name not in already_there:
            (downloads / part.file.name).unlink()
    return root


def _fetch_one_way(publication: Publication, downloads: Path, reporter: Reporter) -> tuple[Part, ...]:
    """Download the files of the first way that works to ``downloads``."""
    failures = []
    for parts in publication.ways:
        try:
            for part in parts:
                with reporter.task(part.file.name) as update:
                    fetch(part.file, downloads, progress=update)
                if part.file.checksum is None:
                    reporter.note(f"{part.file.name}: no checksum is published; only the counts are verified")
        except DownloadError as error:
            failures.append(str(error))
        else:
            return parts
    files = " and ".join(part.file.name for part in publication.ways[0])
    steps = f"{publication.manual}. " if publication.manual else ""
    raise DownloadError(
        f"{'; '.join(failures)}. By hand: {steps}Put {files} (from {publication.page}) into {downloads} and repeat the "
        "command, which verifies and unpacks them"
    )


def _verify(name: str, root: Path, reporter: Reporter) -> None:
    for note in SCHEMES[name](root).notes:
        reporter.note(f"verified: {note}")


def unpack(archive: Path, folder: Path, *, strip: int = 0, progress: Progress = lambda *_: None) -> None:
    """Unpack the files of a zip or tar archive into ``folder``, without the first ``strip`` folders of their names.

    UserError for a name that leads out of ``folder``, and if the content exceeds `MAX_RATIO` times the archive. Links
    and devices are skipped.
    """
    size = archive.stat().st_size
    left = MAX_RATIO * size
    with archive.open("rb") as file, ExitStack() as opened:
        try:
            for name, content in _members(file, opened):
                relative = _safe(name, archive).parts[strip:]
                if not relative:
                    continue
                target = folder.joinpath(*relative)
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    while chunk := content.read(1 << 20):
                        left -= len(chunk)
                        if left < 0:
                            raise UserError(f"{archive}: unpacks to more than {MAX_RATIO} times its size; not unpacked")
                        out.write(chunk)
                progress(min(file.tell(), size), size)
        except _DAMAGED as error:
            if isinstance(error, OSError) and error.filename is not None:  # of the disk
                raise
            raise UserError(f"{archive}: not a complete archive ({error})") from error


def _members(file: BinaryIO, opened: ExitStack) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of each regular file of the archive."""
    if zipfile.is_zipfile(file):
        pack = opened.enter_context(zipfile.ZipFile(file))
        for entry in pack.infolist():
            if not entry.is_dir() and stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG):
                yield entry.filename, pack.open(entry)
    else:
        file.seek(0)
        tape = opened.enter_context(tarfile.open(fileobj=file))  # noqa: SIM115
        for member in tape:
            content = tape.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content


def _safe(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise UserError(f"{archive}: the name {name!r} leads out of the folder; not unpacked")
    return path
