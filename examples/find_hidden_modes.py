"""Several centres find structure that labels do not show: trained to tell even from odd, centres represent digits.

python examples/find_hidden_modes.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from softtriple import SoftTripleLoss

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
pixels, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
odd = digits % 2  # the only labels that training sees


def train(centers_per_class: int, tau: float) -> tuple[nn.Module, SoftTripleLoss]:
    """A linear map trained to tell even digits from odd ones; a deeper network would merge the digits of a class."""
    encoder = nn.Linear(64, 16)
    loss = SoftTripleLoss(2, 16, centers_per_class, tau=tau)
    optimizer = torch.optim.Adam(loss.param_groups(encoder, lr=1e-3))
    for _ in range(10):
        for rows in torch.randperm(len(odd)).split(32):
            optimizer.zero_grad()
            loss(encoder(pixels[rows]), odd[rows]).backward()
            optimizer.step()
    return encoder, loss


@torch.no_grad()
def purity(encoder: nn.Module, loss: SoftTripleLoss) -> float:
    """Share of items whose digit is the most common one at their nearest centre (of their class, after merging)."""
    merged = loss.merge_centers()
    similarity = F.normalize(encoder(pixels), dim=-1) @ merged.centers.T
    center = similarity.masked_fill(merged.classes != odd[:, None], -torch.inf).argmax(dim=1)
    return sum(int(digits[center == number].bincount().max()) for number in center.unique()) / len(digits)


for k, tau in [(1, 0.0), (10, 0.0), (10, 0.2)]:
    encoder, loss = train(k, tau)
    left = loss.distinct_centers().tolist()
    print(f"K = {k:>2}, tau = {tau}: {left} centres left, purity {purity(encoder, loss):.2f} (chance: 0.20)")
