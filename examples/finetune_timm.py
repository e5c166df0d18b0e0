"""Fine-tune all layers of a timm network on a folder with one sub-folder per class, in a loop of your own.

python examples/finetune_timm.py photos/ [timm:resnet50] [EPOCHS]        needs pip install 'softtriple[timm]'

Half of the classes are not trained on; the metrics are for those. The same in one call, with checkpoints and a report:
softtriple.train("photos/", backbone="timm:resnet50", trainable="all", out="runs/photos")
"""

import sys

import torch

from softtriple import Encoder, SoftTripleLoss, evaluate
from softtriple.data import View, batches, contiguous_labels, load_benchmark, shuffled

folder, backbone, epochs = (*sys.argv[1:4], *("photos/", "timm:resnet50", "10")[len(sys.argv) - 1 :])
benchmark = load_benchmark(folder)
labels, classes = contiguous_labels(benchmark.train.labels)  # numbered from 0 without gaps

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
encoder = Encoder.from_backbone(backbone, dim=128).to(device)
encoder.freeze_batch_norm("statistics")  # small batches give poor estimates
loss = SoftTripleLoss(len(classes), encoder.dim, centers_per_class=4).to(device)
optimizer = torch.optim.Adam(loss.param_groups(encoder, lr=1e-4, center_lr=1e-2))

# The encoder knows the size, crop and normalisation that its weights expect.
view = View(size=encoder.preprocess.size, resize=encoder.preprocess.resize, augment="resized-crop")
for epoch in range(int(epochs)):
    encoder.train()
    rows = list(shuffled(len(labels), 32, seed=0, epoch=epoch))
    total = 0.0
    for batch, (images, _) in zip(rows, batches(benchmark.train, rows, view, seed=0, epoch=epoch), strict=True):
        targets = torch.from_numpy(labels[batch]).to(device)
        value = loss(encoder(encoder.prepare(images).to(device)), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        total += value.item() * len(batch)
    print(f"epoch {epoch + 1}: loss {total / len(labels):.3f}")

report = evaluate(encoder.embed(benchmark.test.items.paths), benchmark.test.labels)
print(f"unseen classes: R@1 {report.recall[1]:.3f}, MAP@R {report.map_at_r:.3f}")
encoder.save("encoder")
