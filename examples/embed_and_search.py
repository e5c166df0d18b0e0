"""Train a run, load its encoder in one line, embed, search in memory, then in a vector store.

python examples/embed_and_search.py [FOLDER]     writes FOLDER/run and FOLDER/store; FOLDER must be new
"""

import sys
from pathlib import Path

import torch
from softtriple.training.indexing import index_data, search

from softtriple import Embeddings, Encoder, evaluate, nearest
from softtriple.config import Config, with_settings
from softtriple.data import load_benchmark
from softtriple.progress import Reporter
from softtriple.training.run import RunDir
from softtriple.training.train import train

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/embed_and_search")
run, store = folder / "run", str(folder / "store")
quiet = Reporter(quiet=True)

# The same as: softtriple train digits --out FOLDER/run --epochs 10 --dim 16
train(with_settings(Config(dataset="digits"), ["train.epochs=10", "model.dim=16"]), RunDir(run), quiet)

encoder = Encoder.load(run)
test = load_benchmark("digits").test
vectors = torch.from_numpy(encoder.embed(test.items.values))  # images, paths or texts where the encoder takes those
report = evaluate(Embeddings(vectors, torch.from_numpy(test.labels)))
print(f"R@1 {report.recall[1]:.3f}, MAP@R {report.map_at_r:.3f}")

found = nearest(vectors[:3], vectors, k=6, exclude_self=False)
for row, neighbors in enumerate(found.rows[:, 1:].tolist()):  # the first neighbour is the item itself
    print(f"item {row}, a {test.labels[row]}: its neighbours are {test.labels[neighbors].tolist()}")

# The same as: softtriple index FOLDER/run digits --store FOLDER/store --split test
#              softtriple search FOLDER/run row:0 --store FOLDER/store -k 5
indexed = index_data(run, Config(dataset="digits"), store, quiet, part="test")
print(f"{indexed.items} items of {indexed.classes} classes in {store}")
for hit in search(run, ["row:0"], store, quiet, k=5)[0]:
    print(f"{hit.score:.3f}  {hit.item.class_name}")
