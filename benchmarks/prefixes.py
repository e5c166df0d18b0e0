"""Do embeddings trained with several widths (``--dims``) keep more at the shorter ones than a plain one cut afterwards?

python benchmarks/prefixes.py --data glyphs --dims 8,16,64 --seeds 3 --set train.epochs=4
python benchmarks/prefixes.py --data cub:PATH --dims 64,128,512

For each width: the first numbers of a plain embedding, its principal components (of the training items), the first
numbers of one trained with ``--dims``, and an encoder trained for that width alone. R@1 and MAP@R on the test classes.
"""

import argparse

import numpy as np
import torch

from softtriple.config import Config, with_settings, with_values
from softtriple.metrics import evaluate
from softtriple.models.features import feature_rows
from softtriple.models.heads import pca_head
from softtriple.progress import Reporter
from softtriple.training import Run, train
from softtriple.training.building import training_feeds

METHODS = ("first numbers of plain", "PCA of plain", "--dims", "trained alone")


def shares(vectors: torch.Tensor, run: Run) -> tuple[float, float]:
    report = evaluate(vectors, run.test_embeddings.labels, recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    return report.recall[1], report.map_at_r


def cut_by_pca(run: Run, dim: int) -> torch.Tensor:
    """Test embeddings on the principal components of the training embeddings, augmented as in training."""
    feeds = training_feeds(run.config, run.encoder, Reporter(quiet=True))
    feeds.frozen = run.encoder.set_trainable(run.config.model.trainable)
    run.encoder.eval()
    with torch.no_grad():
        embedded = run.encoder.project(feature_rows(run.encoder, feeds.training(run.benchmark().train)))
    weight, bias = pca_head(embedded, dim)
    return torch.nn.functional.linear(run.test_embeddings.vectors.double(), weight, bias).float()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", default=["glyphs"])
    parser.add_argument("--dims", default="8,16,64")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    dims = tuple(map(int, arguments.dims.split(",")))
    for data in arguments.data:
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for seed in range(arguments.seeds):
            base = with_values(with_settings(Config(), arguments.settings), {"train.seed": seed})

            def run(base: Config = base, data: str = data, **model: object) -> Run:
                return train(data, config=with_values(base, {f"model.{key}": value for key, value in model.items()}))

            plain, several = run(dim=dims[-1]), run(dims=dims)
            for dim in dims:
                alone = plain if dim == dims[-1] else run(dim=dim)
                vectors = (
                    plain.test_embeddings.vectors[:, :dim],
                    plain.test_embeddings.vectors if dim == dims[-1] else cut_by_pca(plain, dim),
                    several.test_embeddings.vectors[:, :dim],
                    alone.test_embeddings.vectors,
                )
                for method, rows in zip(METHODS, vectors, strict=True):
                    found.setdefault((method, dim), []).append(shares(rows, plain))
        print(f"\n{data}: R@1 / MAP@R, mean over seeds: {arguments.seeds} (± standard deviation of R@1)")
        for method in METHODS:
            cells = []
            for dim in dims:
                values = 100 * np.array(found[method, dim])
                spread = f" ± {values[:, 0].std():.1f}" if len(values) > 1 else ""
                cells.append(f"{dim}: {values[:, 0].mean():.1f}{spread} / {values[:, 1].mean():.1f}")
            print(f"{method:<24}{'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
