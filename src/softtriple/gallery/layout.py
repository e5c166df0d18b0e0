"""A UMAP layout of the embeddings, computed once by another process and cached in a file.

A process and not a thread: numba keeps the interpreter lock, so a thread would stop the server for minutes.
"""

import hashlib
import math
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from softtriple.files import atomic_write

State = Literal["ready", "computing", "unavailable"]

NEIGHBORS = 15  # UMAP's default
FEWEST = 4 * NEIGHBORS  # items; below that the principal components show as much
REDUCED = 50  # dimensions that UMAP works on


def digest_of(ids: Sequence[str], vectors: Float[np.ndarray, "items dim"]) -> str:
    """Identifies items and their embeddings, in their order."""
    content = hashlib.blake2b("\0".join(ids).encode(), digest_size=16)
    content.update(np.ascontiguousarray(vectors).data)
    return content.hexdigest()


class UmapLayout:
    """The layout of the latest vectors, from ``file`` or from a process that writes it; not safe to use from threads.

    Without a file, or without the package umap-learn, there is none.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file if find_spec("umap") is not None else None
        self._digest, self._points = "", np.empty((0, 2))
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def request(self, digest: str, vectors: Float[np.ndarray, "items dim"]) -> None:
        """Make sure that the layout of ``vectors`` is there or on its way."""
        if self._file is None or digest == self._digest or len(vectors) < FEWEST:
            return
        self.close()
        self._digest, self._points = digest, np.empty((0, 2))
        if not self._read():
            self._folder = tempfile.TemporaryDirectory(prefix="softtriple-umap-")
            given = Path(self._folder.name) / "vectors.npy"
            np.save(given, np.asarray(vectors, dtype=np.float32))
            command = "import sys; from softtriple.gallery.layout import write_layout; write_layout(*sys.argv[1:])"
            arguments = [sys.executable, "-c", command, str(given), str(self._file), digest]
            self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
            # So that it does not stay a zombie until the next request.
            threading.Thread(target=self._process.wait, name="gallery-umap", daemon=True).start()

    def state(self, digest: str) -> State:
        """Whether the layout of the vectors that ``digest`` names can be had."""
        if digest != self._digest:
            return "unavailable"
        if self._process is not None and self._process.poll() is not None:
            self.close()
            self._read()
        if self._process is not None:
            return "computing"
        return "ready" if len(self._points) else "unavailable"

    def points(self, digest: str) -> Float[np.ndarray, "items 2"]:
        """The layout, once its state is "ready"."""
        assert self.state(digest) == "ready"
        return self._points

    def close(self) -> None:
        """Stop computing."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _read(self) -> bool:
        """Whether the file has the layout, which is then kept."""
        assert self._file is not None
        try:
            with np.load(self._file, allow_pickle=False) as content:
                if str(content["digest"]) == self._digest:
                    self._points = content["points"].astype(np.float64).reshape(-1, 2)
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):  # none yet, or not ours
            return False
        return len(self._points) > 0


def rounded(values: Float[np.ndarray, " points"]) -> list[float]:
    """``values`` to four digits of the largest: finer than any screen, and half the size to send."""
    largest = float(np.abs(values).max(initial=0.0))
    digits = 4 - math.floor(math.log10(largest)) if largest > 0 else 0
    return [round(value, digits) for value in values.tolist()]


def file_beside(store_uri: str, run: Path, ending: str) -> Path:
    """A file that belongs to a store: beside it if it is local, else in the directory of the run.

    Example:
        >>> str(file_beside("runs/a.store", Path("runs/a"), "map.npz"))
        'runs/a.store.map.npz'
        >>> file_beside("s3://bucket/name", Path("runs/a"), "map.npz").parent.name
        'a'
    """
    if "://" not in store_uri:
        return Path(f"{store_uri.rstrip('/')}.{ending}")
    return run / f"store-{hashlib.sha256(store_uri.encode()).hexdigest()[:12]}.{ending}"


def umap_points(vectors: Float[np.ndarray, "items dim"]) -> Float[np.ndarray, "items 2"]:
    """The layout of unit vectors; the same on every run, which costs UMAP its threads."""
    from sklearn.decomposition import PCA
    from umap import UMAP

    if vectors.shape[1] > REDUCED:
        vectors = PCA(REDUCED, svd_solver="covariance_eigh").fit_transform(vectors)
    layout = UMAP(n_neighbors=NEIGHBORS, min_dist=0.1, init="pca", random_state=0, n_jobs=1)
    return np.asarray(layout.fit_transform(vectors), dtype=np.float64)


def write_layout(given: str, file: str, digest: str) -> None:
    """Write the layout of the vectors in the file ``given`` to ``file``; runs in a process of its own."""
    if hasattr(os, "nice"):
        os.nice(10)  # the server goes first
    points = umap_points(np.load(given)).astype(np.float32)
    with atomic_write(Path(file)) as temporary:
        np.savez(temporary, digest=digest, points=points)
