"""The SoftTriple paper: its tables as data, how to train their rows, and what `softtriple reproduce` makes of them."""
