"""Copies and near-copies among items, in groups.

Exact copies have the same content. Near-copies are found in two steps. Candidates are nearest neighbours by embedding
and, for images, by small thumbnails, also mirrored. A pair of images is then compared by correlating grey thumbnails
while one is cropped a little against the other: that tells a re-encoded, resized, cropped or mirrored copy from another
picture of the same thing. Without pictures a pair counts if its distance is a small part of the usual distance to the
nearest neighbour.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from softtriple.metrics.suspects import reduced
from softtriple.search import nearest

How = Literal["exact", "picture", "embedding"]

CANDIDATES = 5  # neighbours of each item, in each space
COARSE = 8  # pixels a side of the thumbnails that candidates are found by
LEAST_COARSE = 0.8  # correlation of coarse thumbnails
SAME_PICTURE = 0.93  # correlation of aligned thumbnails
CROP = 0.95  # side of the part that is aligned
SHIFTS = (-0.05, -0.025, 0.0, 0.025, 0.05)  # of its centre, as shares of half a side
CLOSE = 0.05  # distance of a near-copy, as a share of the median distance to the nearest neighbour
ITEMS_AT_ONCE = 512
PAIRS_AT_ONCE = 1024

Progress = Callable[[int, int], None]


class Pair(NamedTuple):
    """Two rows, the lower first, and how alike they are: 1 for the same content."""

    first: int
    second: int
    how: How
    similarity: float


@dataclass(frozen=True)
class DuplicateGroup:
    """Rows that are copies of each other, directly or through others; ``similarity`` is that of the weakest link."""

    rows: tuple[int, ...]
    how: How  # the weakest evidence in the group
    similarity: float


def find_duplicates(
    digests: Sequence[bytes],
    features: Float[Tensor, "items features"],
    thumbnails: UInt8[np.ndarray, "items side side 3"] | None,
    *,
    progress: Progress = lambda done, total: None,
) -> list[DuplicateGroup]:
    """Groups of copies, exact ones first; ``thumbnails`` if the items are images."""
    exact = exact_pairs(digests)
    known = {(pair.first, pair.second) for pair in exact}
    if thumbnails is None:
        near = close_pairs(features)
    else:
        near = same_pictures(thumbnails, candidate_pairs(features, thumbnails), progress=progress)
    pairs = exact + [pair for pair in near if (pair.first, pair.second) not in known]
    return group_pairs(pairs, len(digests))


def exact_pairs(digests: Sequence[bytes]) -> list[Pair]:
    """The first item of each content, with every later copy of it."""
    first: dict[bytes, int] = {}
    pairs = []
    for row, digest in enumerate(digests):
        if (earlier := first.setdefault(digest, row)) != row:
            pairs.append(Pair(earlier, row, "exact", 1.0))
    return pairs


def close_pairs(features: Float[Tensor, "items features"]) -> list[Pair]:
    """Pairs that are far closer to each other than items usually are to their nearest neighbour."""
    vectors = F.normalize(reduced(features), dim=1)
    neighbors = nearest(vectors, vectors, CANDIDATES, exclude_self=True)
    distance = 1 - neighbors.scores
    limit = CLOSE * float(distance[:, 0].median())
    rows, places = (distance <= limit).nonzero(as_tuple=True)
    others, scores = neighbors.rows[rows, places], neighbors.scores[rows, places]
    pairs = {
        (min(row, other), max(row, other)): score
        for row, other, score in zip(rows.tolist(), others.tolist(), scores.tolist(), strict=True)
    }
    return [Pair(first, second, "embedding", score) for (first, second), score in sorted(pairs.items())]


def candidate_pairs(
    features: Float[Tensor, "items features"], thumbnails: UInt8[np.ndarray, "items side side 3"]
) -> Int[Tensor, "pairs 2"]:
    """Pairs worth comparing: neighbours by embedding, and by coarse thumbnails with and without mirroring."""
    embedded = F.normalize(reduced(features), dim=1)
    images = torch.from_numpy(thumbnails).permute(0, 3, 1, 2)
    small = torch.cat([F.adaptive_avg_pool2d(part.float(), COARSE) for part in torch.split(images, PAIRS_AT_ONCE)])
    coarse, mirrored = _standardized(small.flatten(1)), _standardized(small.flip(-1).flatten(1))
    itself = torch.arange(len(images))[:, None]
    parts = []
    for queries, gallery in ((embedded, embedded), (coarse, coarse), (mirrored, coarse)):
        neighbors = nearest(queries, gallery, CANDIDATES + 1).rows
        parts.append(torch.stack([itself.expand_as(neighbors), neighbors], dim=2).flatten(0, 1).sort(dim=1).values)
    pairs = torch.unique(torch.cat(parts), dim=0)
    first, second = pairs.T
    upright, turned = ((rows[first] * coarse[second]).sum(dim=1) for rows in (coarse, mirrored))
    kept: Tensor = pairs[(torch.maximum(upright, turned) >= LEAST_COARSE) & (first != second)]
    return kept


def same_pictures(
    thumbnails: UInt8[np.ndarray, "items side side 3"],
    pairs: Int[Tensor, "pairs 2"],
    *,
    least: float = SAME_PICTURE,
    progress: Progress = lambda done, total: None,
) -> list[Pair]:
    """Those of ``pairs`` that show the same picture; either may be a mirrored or slightly cropped copy of the other.

    ``least`` is the least correlation of two thumbnails, one of them cropped to fit the other.
    """
    best = torch.full((len(pairs),), -1.0)
    numbers = torch.arange(len(pairs)).repeat(2)
    whole, part = torch.cat([pairs, pairs.flip(1)]).T
    order = whole.argsort(stable=True)
    numbers, whole, part = numbers[order], whole[order], part[order]
    ends = torch.searchsorted(whole, torch.arange(0, len(thumbnails) + ITEMS_AT_ONCE, ITEMS_AT_ONCE))
    for block, (start, end) in enumerate(itertools.pairwise(ends.tolist())):
        if start == end:
            continue
        first = block * ITEMS_AT_ONCE
        crops = _crops(_grey(thumbnails[first : first + ITEMS_AT_ONCE]))
        for few in torch.split(torch.arange(start, end), PAIRS_AT_ONCE):
            other = _grey(thumbnails[part[few].numpy()])
            both = torch.stack([_standardized(image.flatten(1)) for image in (other, other.flip(-1))], dim=2)
            alike = (crops[whole[few] - first] @ both).flatten(1).amax(dim=1)
            best.scatter_reduce_(0, numbers[few], alike, "amax")
        progress(min(first + ITEMS_AT_ONCE, len(thumbnails)), len(thumbnails))
    same = (best >= least).nonzero().flatten()
    columns = (*pairs[same].T.tolist(), best[same].tolist())
    return [Pair(first, second, "picture", score) for first, second, score in zip(*columns, strict=True)]


def group_pairs(pairs: Sequence[Pair], count: int) -> list[DuplicateGroup]:
    """Connected pairs of ``count`` rows as groups: exact ones first, then by decreasing similarity."""
    if not pairs:
        return []
    first, second = np.array([(pair.first, pair.second) for pair in pairs]).T
    _, owner = connected_components(coo_array((np.ones(len(pairs)), (first, second)), shape=(count, count)))
    rank: dict[How, int] = {"exact": 0, "picture": 1, "embedding": 2}
    members: dict[int, list[Pair]] = {}
    for pair in pairs:
        members.setdefault(int(owner[pair.first]), []).append(pair)
    groups = [
        DuplicateGroup(
            tuple(sorted({row for pair in some for row in (pair.first, pair.second)})),
            max((pair.how for pair in some), key=rank.__getitem__),
            min(pair.similarity for pair in some),
        )
        for some in members.values()
    ]
    return sorted(groups, key=lambda group: (rank[group.how], -group.similarity, group.rows))


def _grey(pixels: UInt8[np.ndarray, "batch side side 3"]) -> Float[Tensor, "batch side side"]:
    return torch.from_numpy(pixels).float() @ torch.tensor([0.299, 0.587, 0.114])


def _standardized(rows: Float[Tensor, "rows values"]) -> Float[Tensor, "rows values"]:
    return F.normalize(rows - rows.mean(dim=1, keepdim=True), dim=1)


def _crops(images: Float[Tensor, "batch side side"]) -> Float[Tensor, "batch crops values"]:
    """Each image and its slightly smaller parts, at the size of the image and standardised."""
    views = [images]
    for right, down in itertools.product(SHIFTS, SHIFTS):
        moved = torch.tensor([[CROP, 0.0, right], [0.0, CROP, down]]).expand(len(images), 2, 3)
        grid = F.affine_grid(moved, [len(images), 1, *images.shape[1:]], align_corners=False)
        view = F.grid_sample(images[:, None], grid, mode="bicubic", padding_mode="border", align_corners=False)
        views.append(view[:, 0])
    return torch.stack([_standardized(view.flatten(1)) for view in views], dim=1)
