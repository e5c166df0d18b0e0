"""HDC's three heads one by one: which of them hold the concatenated embedding back.

softtriple reproduce table2 --rows hdc --protocol head --data cub:PATH --out runs/hdc
python benchmarks/hdc_heads.py runs/hdc/hdc_384/seed-0
"""

import argparse
from pathlib import Path

import torch.nn.functional as F
from measuring import table

from softtriple import evaluate
from softtriple.papers.hdc import HEADS, load_hdc_encoder
from softtriple.progress import Reporter
from softtriple.training.building import encoder_config, training_feeds
from softtriple.training.directory import RunDir
from softtriple.training.loading import load_data
from softtriple.training.measure import embed_split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory of the row hdc")
    directory, reporter = RunDir(parser.parse_args().run), Reporter()
    config = directory.read_config()
    benchmark = load_data(config, reporter)
    assert config.model.dim != "auto"
    encoder = load_hdc_encoder(directory.encoder, encoder_config(config.model, config.model.dim, benchmark)).eval()
    feeds = training_feeds(config, encoder, reporter)
    feeds.frozen = encoder.set_trainable(config.model.trainable)
    test = embed_split(encoder, feeds, benchmark.test, benchmark.class_names, reporter)
    *shallow, deep = test.vectors.chunk(HEADS, dim=1)
    parts = {
        "all": test.vectors,
        **{f"shallow head {n}": part for n, part in enumerate(shallow, start=1)},
        "deep head": deep,
    }
    rows = []
    for name, vectors in parts.items():
        report = evaluate(F.normalize(vectors, dim=1), test.labels, kmeans_restarts=0, bootstrap=0)
        rows.append([name, str(vectors.shape[1]), f"{100 * report.recall[1]:.1f}", f"{100 * report.map_at_r:.1f}"])
    print(table(["heads", "dimensions", "R@1", "MAP@R"], rows))


if __name__ == "__main__":
    main()
