"""The loss in a training loop of your own, with any encoder and optimiser; the centres are ordinary parameters.

python examples/loss_in_your_own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from softtriple import SoftTripleLoss, evaluate

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
pixels, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
train, test = train_test_split(torch.arange(len(digits)), test_size=0.5, random_state=0, stratify=digits)

encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
loss = SoftTripleLoss(num_classes=10, embedding_size=32, centers_per_class=4)
# The centres have their own learning rate; forgetting to pass them to the optimiser is a common mistake.
optimizer = torch.optim.Adam(loss.param_groups(encoder, lr=1e-3, center_lr=1e-2))

for epoch in range(10):
    total = 0.0
    for rows in train[torch.randperm(len(train))].split(32):
        value = loss(encoder(pixels[rows]), digits[rows])  # the loss normalises
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += value.item() * len(rows)
    print(f"epoch {epoch + 1}: loss {total / len(train):.3f}")

with torch.no_grad():
    vectors = encoder(pixels[test])
    accuracy = (loss.predict(vectors) == digits[test]).float().mean().item()
report = evaluate(vectors, digits[test])
print(f"accuracy {accuracy:.3f}, R@1 {report.recall[1]:.3f}, MAP@R {report.map_at_r:.3f}")
print(f"centres left of 4, by class: {loss.distinct_centers().tolist()}")
