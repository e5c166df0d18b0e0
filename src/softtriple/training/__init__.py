"""Training: from data to a run, the loop, what "auto" means, checkpoints and the run directory."""

from softtriple.training.run import Run as Run
from softtriple.training.train import train as train
