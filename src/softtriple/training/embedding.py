"""A file with the embeddings of all items of a benchmark; an interrupted `embed` continues where it stopped.

Until the file is complete, finished blocks of embeddings are kept in the folder FILE.partial. Their names begin with a
key of encoder, items and precision, so that blocks of another encoder or of changed data are not used.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from softtriple import dist
from softtriple.data import Benchmark, ImageFiles, Split, VectorFile, in_order, write_vectors
from softtriple.data.benchmark import fingerprint
from softtriple.data.cache import DamagedCacheError, map_rows, write_rows
from softtriple.errors import UserError
from softtriple.files import atomic_write, naming_file, remove_partial
from softtriple.models import Encoder
from softtriple.models.features import EMBEDDING_BATCH, Feed, Feeds, embed_batches
from softtriple.progress import Reporter

BLOCK = 4 * EMBEDDING_BATCH  # items that an interruption loses at most
_BLOCK_NAME = re.compile(r"([0-9a-f]{16})-\d{10}\.npy")


def check_vector_file(out: Path) -> None:
    """UserError unless embeddings can be written to a file of this name."""
    if out.suffix not in (".npz", ".parquet"):
        raise UserError(f"{out}: embeddings are written to .npz or .parquet, not to {out.suffix or 'a bare name'}")


def write_embeddings(
    encoder: Encoder,
    feeds: Feeds,
    benchmark: Benchmark,
    out: Path,
    reporter: Reporter,
    *,
    half: torch.dtype | None = None,
) -> int:
    """Write the embeddings of all items of ``benchmark`` to ``out``; returns how many there are.

    With ``half`` the backbone computes in that type. Blocks that an interrupted call left are used.
    """
    splits = [split for split in benchmark.splits.values() if len(split)]
    readings = [feeds.single_pass(split) for split in splits]
    keys = [_key(encoder, split, feed, half) for split, feed in zip(splits, readings, strict=True)]
    folder = out.with_name(f"{out.name}.partial")
    with dist.main_first():
        finished = _remove_blocks(folder, keep=keys)
    dist.barrier()  # no rank cleans up while another already writes
    if finished:
        reporter.note(f"continuing with the finished blocks in {folder}")
    with reporter.task("embedding") as update:
        shares = [
            _embed_blocks(encoder, feed, folder, key, half, update) for feed, key in zip(readings, keys, strict=True)
        ]
    with naming_file(out):  # only the first rank has more than its share
        out.parent.mkdir(parents=True, exist_ok=True)
        parts = [dist.rows_on_main(share, out.parent) for share in shares]
    labels = np.concatenate([split.labels for split in splits])
    if dist.is_main():
        paths = tuple(path for split in splits if isinstance(split.items, ImageFiles) for path in split.items.paths)
        content = VectorFile(
            vectors=torch.cat(parts).numpy(), labels=labels, class_names=benchmark.class_names, paths=paths or None
        )
        write_vectors(out, content)
    with dist.main_first():  # blocks stay until the file is complete
        _remove_blocks(folder)
    return len(labels)


def _embed_blocks(
    encoder: Encoder,
    feed: Feed,
    folder: Path,
    key: str,
    half: torch.dtype | None,
    progress: Callable[[int, int], None],
) -> Float[Tensor, "share dim"]:
    """This rank's embeddings of ``feed``; ranks divide whole blocks among themselves."""
    share = list(in_order(len(feed), BLOCK))[dist.share(-(-len(feed) // BLOCK))]
    files = [folder / f"{key}-{rows[0]:010}.npy" for rows in share]
    blocks = [_read_block(file) for file in files]
    missing = [rows for rows, block in zip(share, blocks, strict=True) if block is None]
    batches = (rows[batch] for rows in missing for batch in in_order(len(rows), EMBEDDING_BATCH))
    done, total = 0, sum(map(len, share))
    # One stream over all missing blocks: images of the next one are decoded while a block is embedded.
    with closing(embed_batches(encoder, feed, batches, half)) as embedded:
        for number, (rows, file) in enumerate(zip(share, files, strict=True)):
            if blocks[number] is None:
                parts = [part.numpy() for part in itertools.islice(embedded, -(-len(rows) // EMBEDDING_BATCH))]
                with atomic_write(file) as temporary:
                    write_rows(temporary, len(rows), parts)
                blocks[number] = np.concatenate(parts)
            done += len(rows)
            progress(done, total)
    none = np.empty((0, encoder.dim), dtype=np.float32)
    return torch.from_numpy(np.concatenate([none, *(block for block in blocks if block is not None)]))


def _read_block(file: Path) -> Float32[np.ndarray, "items dim"] | None:
    try:
        return map_rows(file)
    except DamagedCacheError:  # or missing
        return None


def _key(encoder: Encoder, split: Split, feed: Feed, half: torch.dtype | None) -> str:
    identity = f"{encoder.fingerprint()} {fingerprint(split.items)} {feed.first} {half}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _remove_blocks(folder: Path, keep: Collection[str] = ()) -> bool:
    """Remove blocks with other keys than ``keep``, and the folder if that leaves it empty; whether blocks are left."""
    remove_partial(folder)
    blocks = [(file, match[1]) for file in folder.glob("*.npy") if (match := _BLOCK_NAME.fullmatch(file.name))]
    for file, key in blocks:
        if key not in keep:
            file.unlink(missing_ok=True)
    with suppress(OSError):  # not empty, or not there
        folder.rmdir()
    return any(key in keep for _, key in blocks)
