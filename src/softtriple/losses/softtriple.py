"""SoftTriple as a module: it owns the centres and evaluates the objective of ``functional.py`` in tiles."""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.losses.base import (
    Labels,
    Vectors,
    check_embeddings,
    check_labels,
    require_count,
    require_finite,
    require_nonnegative,
    require_positive,
)
from softtriple.losses.centers import MERGED, CenterLoss, MergedCenters, merge, moved_to_data
from softtriple.losses.functional import Settings, center_spread, mix_classes, soft_similarity, softtriple_objective
from softtriple.losses.tiled import Part, RecycledMemory, tiled_objective, working_bytes

MIXING = 0.4  # both parameters of the beta distribution of mixing proportions, as in Proxy Synthesis


class SoftTripleLoss(CenterLoss):
    """SoftTriple: several centres per class, and no sampling of triplets (Eq. 8 and 10).

    Args:
        num_classes: number of classes; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        centers_per_class: K, enough for the modes of a class and fewer than its examples; tau merges the surplus.
        scale: λ, inverse temperature over classes.
        gamma: γ, temperature over the centres of a class.
        margin: δ, margin by which the true class must win.
        tau: τ, weight of the regulariser. Below 0 it pushes the centres of a class apart instead of merging them.
        smoothing: added under the square root of the regulariser; the authors' code uses 1e-5.
        prefixes: widths to which embeddings may be truncated later (Matryoshka, Kusupati et al., NeurIPS 2022). The
            loss is the sum over these and the full width, with embeddings and centres truncated alike.
        synthesis: share of each batch that is mixed with an example of another class into a synthetic example of a
            synthetic class, in training only (Proxy Synthesis, Gu et al., AAAI 2021).
        validate: check the values of each batch (finite, labels in range). On a GPU this waits for the device.

    ``HardTripleLoss`` is the limit gamma -> 0; ``NormalizedSoftmaxLoss`` is K = 1 without a margin. ``torch.func``
    cannot transform the hand-written gradient; use ``softtriple_objective``, the same function, with it.

    Example:
        >>> loss = SoftTripleLoss(num_classes=3, embedding_size=8, centers_per_class=2)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 1, 2, 0])).backward()
        >>> loss.centers.grad.shape
        torch.Size([3, 2, 8])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        *,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        smoothing: float = 0.0,
        prefixes: Sequence[int] = (),
        synthesis: float = 0.0,
        validate: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class, validate=validate)
        self.scale, self.gamma = require_positive("scale", scale), require_positive("gamma", gamma)
        self.margin, self.tau = require_nonnegative("margin", margin), require_finite("tau", tau)
        self.smoothing = require_nonnegative("smoothing", smoothing)
        self.prefixes = tuple(require_count("prefixes", width) for width in prefixes)
        if not all(a < b for a, b in zip(self.prefixes, (*self.prefixes[1:], self.embedding_size), strict=False)):
            raise UserError(f"prefixes = {list(prefixes)} must increase and stay below embedding_size={embedding_size}")
        if not 0 <= synthesis <= 1:
            raise UserError(f"synthesis = {synthesis!r} must be from 0 to 1: the share of a batch that is mixed")
        self.synthesis = synthesis
        self._memories = tuple(RecycledMemory() for _ in range(1 + len(self.prefixes)))

    @property
    def settings(self) -> Settings:
        """The hyperparameters of the objective."""
        return Settings(self.scale, self.gamma, self.margin, self.tau, self.smoothing)

    def forward(
        self, embeddings: Vectors, labels: Labels, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` with classes ``labels``, plus tau times the spread of the centres.

        ``indices_tuple`` must be None. The trainers of pytorch-metric-learning pass it to every loss; it holds the
        pairs that a miner selected, and this loss does not use pairs.
        """
        if indices_tuple is not None:
            raise UserError(
                "indices_tuple: SoftTriple compares examples with centres, not with each other; use no miner"
            )
        embeddings, labels = self.check_batch(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):  # centres and sums stay in float32
            centers = self.centers.to(embeddings.dtype)
            if self.synthesis and self.training:
                return self._mixed_objective(embeddings, labels, centers)
            if torch.compiler.is_compiling():
                value = softtriple_objective(embeddings, labels, centers, self.settings)
                for width in self.prefixes:
                    value = value + softtriple_objective(
                        embeddings[:, :width], labels, centers[..., :width], self.settings
                    )
                return value
            return prefix_objective(embeddings, labels, centers, self.settings, self.prefixes, self._memories)

    def _mixed_objective(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"], centers: Tensor
    ) -> Float[Tensor, ""]:
        """The objective with synthetic classes, which the regulariser leaves alone."""
        pairs = draw_pairs(labels, self.synthesis)
        beta = torch.distributions.Beta(MIXING, MIXING)
        shares = beta.sample((pairs.shape[1],)).to(embeddings)
        mixed, mixed_centers = mix_classes(embeddings, labels, centers, pairs, shares)
        added = len(centers) + torch.arange(len(mixed), device=labels.device)
        value = prefix_objective(
            torch.cat([F.normalize(embeddings, dim=-1), mixed]),
            torch.cat([labels, added]),
            torch.cat([F.normalize(centers, dim=-1), mixed_centers]),
            self.settings._replace(tau=0.0),
            self.prefixes,
            self._memories,
        )
        for width in (*self.prefixes, self.embedding_size):
            spread = center_spread(F.normalize(centers[..., :width], dim=-1), self.smoothing)
            value = value + self.tau * spread
        return value

    def compare(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        """Relaxed similarity S' of each embedding to each class."""
        return soft_similarity(F.normalize(embeddings, dim=-1), F.normalize(centers, dim=-1), self.gamma)

    @torch.no_grad()
    def merge_centers(self, tolerance: float = MERGED) -> MergedCenters:
        """The distinct centres only: a compact set with nearly the same similarities."""
        return merge(self.centers, self.gamma, tolerance)

    @torch.no_grad()
    def add_classes(self, embeddings: Vectors, labels: Labels) -> "SoftTripleLoss":
        """A new loss with more classes: existing centres are copied, new ones come from k-means on ``embeddings``.

        ``labels`` continue after the existing ones: num_classes, num_classes + 1, and so on. This loss does not change,
        because an optimiser may hold its centres.
        """
        embeddings = check_embeddings(embeddings, self.embedding_size, self.centers, check_values=True)
        labels = check_labels(labels, embeddings)
        added = sorted(set(labels.tolist()))
        if added != list(range(self.num_classes, self.num_classes + len(added))):
            raise UserError(
                f"labels of new classes must be {self.num_classes}, {self.num_classes + 1}, ... without a gap, "
                f"not {', '.join(map(str, added[:10]))}"
            )
        # Of the same length as the existing centres, so that an optimiser step turns both by the same angle.
        _, k, dim = self.centers.shape
        length = torch.linalg.vector_norm(self.centers, dim=-1).mean()
        new = (length * dim**-0.5).expand(len(added), k, dim)
        return self.with_centers(torch.cat([self.centers, moved_to_data(new, embeddings, labels - self.num_classes)]))

    def with_centers(self, centers: Float[Tensor, "classes k dim"]) -> "SoftTripleLoss":
        """The same loss for the classes of ``centers``."""
        changed = copy.deepcopy(self)
        changed.centers, changed.num_classes = nn.Parameter(centers, self.centers.requires_grad), len(centers)
        return changed

    def working_bytes(self, batch_size: int) -> int:
        """Approximate scratch memory of a step."""
        return prefix_working_bytes(
            batch_size, self.centers.shape, self.prefixes, self.tau, self.centers.element_size()
        )

    def extra_repr(self) -> str:
        """Sizes and settings, as shown by ``print(loss)``."""
        num_classes, k, dim = self.centers.shape
        names = ("scale", "gamma", "margin", "tau", "smoothing", "prefixes", "synthesis", "validate")
        options = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"num_classes={num_classes}, embedding_size={dim}, centers_per_class={k}, {options}"


def draw_pairs(labels: Int[Tensor, " batch"], share: float) -> Int[Tensor, "2 mixed"]:
    """Random pairs of rows with different classes, at most ``share`` times the batch."""
    count = round(share * len(labels))
    one, other = (torch.randperm(len(labels))[:count].to(labels.device) for _ in range(2))
    differ = labels[one] != labels[other]
    return torch.stack([one[differ], other[differ]])


def prefix_objective(
    embeddings: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    centers: Float[Tensor, "classes k dim"],
    settings: Settings,
    prefixes: Sequence[int],
    memories: Sequence[RecycledMemory],
    part: Part | None = None,
) -> Float[Tensor, ""]:
    """The sum of ``tiled_objective`` over the full width and each of ``prefixes``, which have a memory each."""
    value = tiled_objective(embeddings, labels, centers, settings, memories[0], part)
    for width, memory in zip(prefixes, memories[1:], strict=True):
        value = value + tiled_objective(embeddings[:, :width], labels, centers[..., :width], settings, memory, part)
    return value


def prefix_working_bytes(batch: int, shape: torch.Size, prefixes: Sequence[int], tau: float, element_size: int) -> int:
    """Approximate scratch memory of ``prefix_objective``, with copies and gradients of the shorter centres."""
    shorter = [torch.Size((*shape[:-1], width)) for width in prefixes]
    copies = sum(2 * one.numel() * element_size for one in shorter)
    return copies + sum(working_bytes(batch, one, tau, element_size) for one in (shape, *shorter))
