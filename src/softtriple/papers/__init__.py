"""The experiments of the SoftTriple paper: published numbers, a recipe per table row, and `softtriple reproduce`."""
