"""scikit-learn's 1 797 handwritten digits as vectors of 64 numbers, split by instance.

Not by class, because five classes are too few to generalise from: no loss trained on 0 to 4 retrieved 5 to 9 better
than the untrained encoder.
"""

import numpy as np

from softtriple.data.benchmark import Benchmark, Split, Vectors
from softtriple.data.splitting import divide, divided


def load_digits() -> Benchmark:
    """Load the digits, with pixels scaled from 0…16 to 0…1."""
    from sklearn import datasets  # imported here because it takes a second

    pixels, labels = datasets.load_digits(return_X_y=True)
    labels = labels.astype(np.int64)
    everything = Split(Vectors((pixels / 16).astype(np.float32)), labels)
    return divided("digits", everything, tuple("0123456789"), divide(labels, "instances", None, None))
