"""scikit-learn's 1 797 handwritten digits as vectors of 64 numbers: train on 0 to 4, test on 5 to 9."""

import numpy as np

from softtriple.data.benchmark import Benchmark, Split, Vectors, with_notes


def load_digits() -> Benchmark:
    """Load the digits; pixels of 0 to 16 become numbers of 0 to 1."""
    from sklearn import datasets  # takes a second to import, and nothing else here needs it

    pixels, labels = datasets.load_digits(return_X_y=True)
    everything = Split(Vectors((pixels / 16).astype(np.float32)), labels.astype(np.int64))
    benchmark = Benchmark(
        name="digits",
        class_names=tuple("0123456789"),
        train=everything.take(np.flatnonzero(labels < 5)),
        test=everything.take(np.flatnonzero(labels >= 5)),
    )
    return with_notes(benchmark)
