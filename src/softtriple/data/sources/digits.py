"""scikit-learn's 1 797 handwritten digits as vectors of 64 numbers: half of each digit to train on, half to test on.

Not split by class: what five digits have in common says too little about the other five. Whatever loss was trained on
0 to 4, it retrieved 5 to 9 no better than the untrained encoder.
"""

import numpy as np

from softtriple.data.benchmark import Benchmark, Split, Vectors, divide, divided


def load_digits() -> Benchmark:
    """Load the digits; pixels of 0 to 16 become numbers of 0 to 1."""
    from sklearn import datasets  # takes a second to import, and nothing else here needs it

    pixels, labels = datasets.load_digits(return_X_y=True)
    labels = labels.astype(np.int64)
    everything = Split(Vectors((pixels / 16).astype(np.float32)), labels)
    return divided("digits", everything, tuple("0123456789"), divide(labels, "instances", None, None))
