"""Add classes after training: their centres are computed from a few examples, without further training.

python examples/add_classes_later.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from softtriple import SoftTripleLoss

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
pixels, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
train, test = torch.arange(len(digits)) % 2 == 0, torch.arange(len(digits)) % 2 == 1
known = digits < 8

encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
loss = SoftTripleLoss(num_classes=8, embedding_size=32, centers_per_class=4)
optimizer = torch.optim.Adam(loss.param_groups(encoder, lr=1e-3))
rows = torch.nonzero(train & known)[:, 0]
for _ in range(10):
    for batch in rows[torch.randperm(len(rows))].split(32):
        optimizer.zero_grad()
        loss(encoder(pixels[batch]), digits[batch]).backward()
        optimizer.step()

with torch.no_grad():
    vectors = encoder(pixels)
    # Ten examples of each new class. Labels continue after the existing ones: 8 and 9.
    examples = torch.cat([torch.nonzero(train & (digits == new))[:10, 0] for new in (8, 9)])
    grown = loss.add_classes(vectors[examples], digits[examples])  # a new loss; the old one is unchanged
    predicted = grown.predict(vectors)


def accuracy(which: torch.Tensor) -> float:
    """Accuracy on the test items among ``which``."""
    return (predicted == digits)[test & which].float().mean().item()


print(f"{len(loss.centers)} classes before, {len(grown.centers)} after")
print(f"accuracy on the eight trained classes: {accuracy(known):.3f}")
print(f"accuracy on the two added classes:     {accuracy(~known):.3f}")
