"""``python -m softtriple`` is ``softtriple``."""

from softtriple.cli import main

main()
