"""Learn a similarity metric from labels, without sampling triplets, and search with it."""

from softtriple.losses import HardTripleLoss as HardTripleLoss
from softtriple.losses import MergedCenters as MergedCenters
from softtriple.losses import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
from softtriple.losses import SoftmaxLoss as SoftmaxLoss
from softtriple.losses import SoftTripleLoss as SoftTripleLoss

__version__ = "0.1.0"
