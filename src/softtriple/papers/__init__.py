"""The SoftTriple paper: published numbers, a recipe for each table row, the targets of `softtriple reproduce`, HDC."""
