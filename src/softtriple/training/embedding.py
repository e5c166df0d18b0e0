"""Embedding over ranks: each takes its part of the items."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softtriple import dist
from softtriple.feeds import EMBEDDING_BATCH, Feed, Progress, embed_feed
from softtriple.models import Encoder


def embed_together(
    encoder: Encoder, feed: Feed, *, device: torch.device | str = "cpu", progress: Progress | None = None
) -> Float[Tensor, "items dim"]:
    """What ``embed_feed`` gives, to the last bit, on every rank."""
    return dist.gather_rows(embed_share(encoder, feed, device=device, progress=progress))


def embed_share(
    encoder: Encoder, feed: Feed, *, device: torch.device | str = "cpu", progress: Progress | None = None
) -> Float[Tensor, "share dim"]:
    """This rank's rows of what ``embed_feed`` gives: ranks share out whole batches of it."""
    batches = dist.share(-(-len(feed) // EMBEDDING_BATCH))
    rows = np.arange(batches.start * EMBEDDING_BATCH, min(batches.stop * EMBEDDING_BATCH, len(feed)))
    if not len(rows):
        return torch.empty(0, encoder.dim)
    part = feed if len(rows) == len(feed) else feed.only(rows, feed.labels[rows])
    return embed_feed(encoder, part, device=device, progress=progress)
