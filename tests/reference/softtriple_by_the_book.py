"""Reference implementation of SoftTriple: plain loops over the sums of the paper, in float64. Never optimise this."""

import torch
from torch import Tensor


def dot(a: Tensor, b: Tensor) -> Tensor:
    return sum((a[d] * b[d] for d in range(len(a))), start=torch.zeros((), dtype=torch.float64))


def unit(a: Tensor) -> Tensor:
    return a / dot(a, a).sqrt()


def relaxed(similarities: list[Tensor], gamma: float) -> Tensor:
    """S' of one example and one class from its similarities to the centres of the class."""
    largest = max(float(s.detach()) for s in similarities)
    weights = [((s - largest) / gamma).exp() for s in similarities]
    return sum(w * s for w, s in zip(weights, similarities, strict=True)) / sum(weights)


def softtriple_loss(similarity: list[list[Tensor]], labels: list[int], scale: float, margin: float) -> Tensor:
    """Eq. 8, averaged over examples, from the similarity of every example to every class."""
    total = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(labels):
        own = scale * (similarity[i][label] - margin)
        others = [scale * s for c, s in enumerate(similarity[i]) if c != label]
        largest = max(float(z.detach()) for z in [own, *others])
        total = total - (own - largest) + sum((z - largest).exp() for z in [own, *others]).log()
    return total / len(labels)


def regulariser(centers: list[list[Tensor]], smoothing: float = 0.0) -> Tensor:
    """The second term of Eq. 10 without tau, of unit centres."""
    num_classes, k = len(centers), len(centers[0])
    total = torch.zeros((), dtype=torch.float64)
    for of_class in centers:
        for t in range(k):
            for s in range(t + 1, k):
                total = total + (2 + smoothing - 2 * dot(of_class[s], of_class[t])).sqrt()
    return total / (num_classes * k * (k - 1)) if k > 1 else total


def hard_triple(embeddings: Tensor, labels: Tensor, centers: Tensor, *, scale: float, margin: float) -> Tensor:
    """Eq. 6: as Eq. 8, with the similarity to the nearest centre of a class (Eq. 5)."""
    similarity = []
    for row in embeddings:
        to_centers = [[dot(unit(row), unit(center)) for center in of_class] for of_class in centers]
        similarity.append([max(of_class) for of_class in to_centers])
    return softtriple_loss(similarity, labels.tolist(), scale, margin)


def objective(
    embeddings: Tensor, labels: Tensor, centers: Tensor, *, scale: float, gamma: float, margin: float, tau: float
) -> Tensor:
    """Eq. 10."""
    x = [unit(row) for row in embeddings]
    w = [[unit(center) for center in of_class] for of_class in centers]
    similarity = [[relaxed([dot(xi, center) for center in of_class], gamma) for of_class in w] for xi in x]
    return softtriple_loss(similarity, labels.tolist(), scale, margin) + tau * regulariser(w)


def synthesis(
    embeddings: Tensor,
    labels: Tensor,
    centers: Tensor,
    pairs: list[list[int]],
    shares: Tensor,
    *,
    scale: float,
    gamma: float,
    margin: float,
    tau: float,
) -> Tensor:
    """Eq. 8 over real and synthetic examples and classes, plus the regulariser of the real centres."""
    x = list(embeddings)
    w = [list(of_class) for of_class in centers]
    numbers = labels.tolist()
    for (i, j), share in zip(pairs, shares, strict=True):
        x.append(share * embeddings[i] + (1 - share) * embeddings[j])
        ours, theirs = centers[labels[i]], centers[labels[j]]
        numbers.append(len(w))
        w.append([share * a + (1 - share) * b for a, b in zip(ours, theirs, strict=True)])
    x = [unit(row) for row in x]
    w = [[unit(center) for center in of_class] for of_class in w]
    similarity = [[relaxed([dot(xi, center) for center in of_class], gamma) for of_class in w] for xi in x]
    return softtriple_loss(similarity, numbers, scale, margin) + tau * regulariser(w[: len(centers)])
