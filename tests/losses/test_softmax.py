"""The two softmax losses against the cross-entropy of their logits."""

import torch
import torch.nn.functional as F
from tests.losses.problems import random_problem, with_centers

from softtriple import NormalizedSoftmaxLoss, SoftmaxLoss, SoftTripleLoss


def test_one_center_without_margin_is_the_normalised_softmax() -> None:
    embeddings, labels, centers = random_problem(2, 6, 5, 1, 8)
    logits = 20.0 * F.normalize(embeddings, dim=1) @ F.normalize(centers[:, 0], dim=1).T
    softmax = with_centers(NormalizedSoftmaxLoss(5, 8), centers)
    torch.testing.assert_close(softmax(embeddings, labels), F.cross_entropy(logits, labels))
    same = SoftTripleLoss(5, 8, 1, margin=0.0, tau=0.0).double()
    same.load_state_dict(softmax.state_dict())
    torch.testing.assert_close(same(embeddings, labels), F.cross_entropy(logits, labels))


def test_plain_softmax_is_cross_entropy_of_products() -> None:
    embeddings, labels, centers = random_problem(3, 6, 5, 1, 8)
    plain = with_centers(SoftmaxLoss(5, 8), centers)
    torch.testing.assert_close(plain(embeddings, labels), F.cross_entropy(embeddings @ centers[:, 0].T, labels))
    torch.testing.assert_close(plain.predict(embeddings), (embeddings @ centers[:, 0].T).argmax(1))
