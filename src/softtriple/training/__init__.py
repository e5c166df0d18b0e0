"""Training: `train` and the `Run` it returns, the loop, what "auto" resolves to, checkpoints and the run directory."""

from softtriple.training.run import Run as Run
from softtriple.training.train import train as train
