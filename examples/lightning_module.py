"""SoftTriple in a LightningModule: the loss is a submodule, so that its centres are trained, moved and saved with it.

python examples/lightning_module.py      needs pip install lightning
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from softtriple import SoftTripleLoss, evaluate


class MetricLearning(lightning.LightningModule):
    """An encoder with SoftTriple."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.loss = SoftTripleLoss(num_classes=5, embedding_size=32, centers_per_class=4)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Loss of a batch of inputs and labels."""
        inputs, labels = batch
        return self.loss(self.encoder(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The centres have their own learning rate."""
        return torch.optim.Adam(self.loss.param_groups(self.encoder, lr=1e-3, center_lr=1e-2))


lightning.seed_everything(0, verbose=False)
pixels, digits = load_digits(return_X_y=True)
pixels, digits = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
known = digits < 5  # the other five digits are not trained on
batches = DataLoader(TensorDataset(pixels[known], digits[known]), batch_size=32, shuffle=True)

model = MetricLearning()
trainer = lightning.Trainer(
    max_epochs=5, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
)
trainer.fit(model, batches)

with torch.no_grad():
    report = evaluate(model.encoder(pixels[~known]), digits[~known])
print(f"unseen digits: R@1 {report.recall[1]:.3f}, MAP@R {report.map_at_r:.3f}")
