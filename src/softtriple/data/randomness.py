"""Random numbers that depend on what they are for, and on nothing that ran before.

A crop is a function of (seed, epoch, row): the same with one thread or eight, in a first run or a resumed one.
"""

import zlib

import numpy as np


def stream(purpose: str, *counters: int) -> np.random.Generator:
    """Generator for ``purpose`` at ``counters``, for example ``stream("crop", seed, epoch, row)``.

    The purpose keeps the shuffle of an epoch independent of its crops although both have the same counters.
    """
    return np.random.default_rng([zlib.crc32(purpose.encode()), *counters])
