"""A loop of your own in two processes, with the centres split over them by class.

torchrun --nproc-per-node 2 examples/two_ranks.py      (with plain python: one process)
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from softtriple import SoftTripleLoss, dist
from softtriple.losses import shard


def main() -> None:
    """Train on this rank's part of each batch; every rank gets the loss of the whole batch."""
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    pixels, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)

    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    loss = shard(SoftTripleLoss(num_classes=10, embedding_size=32, centers_per_class=4))
    parallel = dist.data_parallel(encoder)  # gradients of the encoder are averaged over ranks
    optimizer = torch.optim.Adam(loss.param_groups(parallel, lr=1e-3))

    order = torch.Generator().manual_seed(0)  # the same batches on every rank
    for epoch in range(5):
        for batch in torch.randperm(len(digits), generator=order).split(64):
            mine = batch[dist.share(len(batch))]
            value = loss(parallel(pixels[mine]), digits[mine])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        if dist.is_main():
            print(f"epoch {epoch + 1}: loss of the last batch {value.item():.4f}")

    left = loss.distinct_centers()  # over all ranks
    if dist.is_main():
        print(f"{dist.world_size()} ranks, {len(loss.centers)} of {len(left)} classes on this one")


if __name__ == "__main__":
    with dist.joined():
        main()
