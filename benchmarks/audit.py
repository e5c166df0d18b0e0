"""What an audit finds: labels flipped at random and by confusion, injected copies of images, and its speed.

    python benchmarks/audit.py --data digits cub:PATH --copies cub:PATH --items 100000
    python benchmarks/audit.py --data glyphs omniglot:PATH --train 3 --name audit-drawings
    python benchmarks/audit.py --figure

Flipped labels are ranked by `softtriple.metrics.suspects.check_labels`, by plain kNN disagreement and by confident
learning (Northcutt et al., JAIR 2021), all on the same features: those that an audit of the data compares by, or with
``--train`` those of an encoder trained on the training half for so many epochs, as in an audit of a run. The settings
of the audit were chosen on the training halves; the items here are those of the test halves. Average precision, and
precision at the true number of flips, both in per cent.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from measuring import RESULTS, machine, peak_memory, reset_peak_memory, save, table
from PIL import Image, ImageOps
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import StandardScaler

from softtriple import train
from softtriple.config import Config
from softtriple.data import ImageFiles, contiguous_labels
from softtriple.data.inspection import Inspection, inspect_items
from softtriple.metrics.audit import audit_items
from softtriple.metrics.duplicates import SAME_PICTURE, candidate_pairs, same_pictures
from softtriple.metrics.suspects import check_labels, deal
from softtriple.progress import Reporter
from softtriple.report.charts import COLORS, STYLE, svg
from softtriple.search import nearest
from softtriple.training.audit import starting_features
from softtriple.training.loading import load_data

MOST_CLASSES = 200  # of a set: logistic regression takes hours on more
SMALL = 5500  # items up to which three seeds are drawn, else one
NEIGHBORS = 10
FOLDS = 5
NOISES = [(kind, share) for kind in ("random", "confusion") for share in (0.05, 0.2)]
COPIES_OF_A_KIND = 100
EVERY = 2  # test image, as an original
FIGURE = Path(__file__).parents[1] / "docs" / "assets" / "audit.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=["digits", "glyphs"])
    parser.add_argument("--copies", help="image files to inject copies into, such as cub:PATH")
    parser.add_argument("--items", type=int, default=0, help="number of vectors to measure the speed on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=0, metavar="EPOCHS", help="train an encoder for the features")
    parser.add_argument("--name", default="audit", help="name of the files in benchmarks/results")
    parser.add_argument("--figure", action="store_true", help="draw the results of both commands above instead")
    options = parser.parse_args()
    if options.figure:
        stored = [json.loads((RESULTS / f"{name}.json").read_text())["rows"] for name in ("audit", "audit-drawings")]
        FIGURE.write_bytes(svg(draw(list(itertools.chain(*stored)))))
        return
    rows = []
    for data in options.data:
        rows += flipped_labels(data, options.seeds, options.train)
        print(text(rows), flush=True)
    if options.copies:
        rows.append(injected_copies(options.copies))
        print(text(rows[-1:]), flush=True)
    if options.items:
        rows.append(speed(options.items))
        print(text(rows[-1:]), flush=True)
    save(options.name, machine("torch", "scikit-learn"), rows, text(rows))


# Flipped labels


def flipped_labels(data: str, seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Average precision and precision at the number of flips, by kind and share of noise, and by method."""
    features, labels = test_features(data, epochs)
    drawn = seeds if len(labels) <= SMALL else 1
    rows = []
    for kind, share in NOISES:
        scores: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
        for seed in range(drawn):
            given, flipped = flip(features, labels, kind, share, seed)
            for name, method in METHODS.items():
                scores[name].append(ranking_quality(method(features, given), flipped))
        means = {name: [statistics.mean(column) for column in zip(*some, strict=True)] for name, some in scores.items()}
        rows.append(
            {
                "data": data.partition(":")[0],
                "items": len(labels),
                "seeds": drawn,
                "noise": kind,
                "share": share,
                **means,
            }
        )
    return rows


def test_features(data: str, epochs: int) -> tuple[torch.Tensor, np.ndarray]:
    """Features that an audit compares by, and labels, of the first classes of the test half."""
    config = Config(dataset=data)
    benchmark = load_data(config)
    if epochs:
        features = train(benchmark, epochs=epochs, reporter=Reporter()).features(benchmark.test)
    else:
        _, features = starting_features(config, benchmark, [benchmark.test], Reporter())
    labels = contiguous_labels(benchmark.test.labels)[0]
    kept = np.flatnonzero(labels < MOST_CLASSES)
    return features[kept], labels[kept]


def flip(
    features: torch.Tensor, labels: np.ndarray, kind: str, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share is wrong, drawn from all classes or always the nearest one, and which these are."""
    random, num_classes = np.random.default_rng(seed), labels.max() + 1
    rows = random.permutation(len(labels))[: round(share * len(labels))]
    given, flipped = labels.copy(), np.zeros(len(labels), dtype=bool)
    flipped[rows] = True
    if kind == "random":
        given[rows] = (labels[rows] + random.integers(1, num_classes, size=len(rows))) % num_classes
        return given, flipped
    vectors = F.normalize(features.double(), dim=1)
    means = torch.zeros(num_classes, vectors.shape[1], dtype=torch.float64)
    means = F.normalize(means.index_add_(0, torch.from_numpy(labels), vectors), dim=1)
    given[rows] = (means @ means.T).fill_diagonal_(-1).argmax(dim=1).numpy()[labels[rows]]
    return given, flipped


def ranking_quality(scores: np.ndarray, flipped: np.ndarray) -> tuple[float, float]:
    """Average precision, and precision at the number of flips, in per cent."""
    first = np.argsort(-scores, kind="stable")[: flipped.sum()]
    return 100 * float(average_precision_score(flipped, scores)), 100 * float(flipped[first].mean())


def by_audit(features: torch.Tensor, given: np.ndarray) -> np.ndarray:
    """The log-odds that `check_labels` ranks by."""
    return check_labels(features, torch.from_numpy(given)).odds.clamp_min(-1e6).numpy()


def by_neighbors(features: torch.Tensor, given: np.ndarray) -> np.ndarray:
    """Share of the nearest neighbours with another label; ties by the distance of the nearest."""
    vectors = F.normalize(features, dim=1)
    neighbors = nearest(vectors, vectors, NEIGHBORS, exclude_self=True)
    labels = torch.from_numpy(given)
    share = (labels[neighbors.rows] != labels[:, None]).float().mean(dim=1)
    return (share + 1e-6 * (1 - neighbors.scores[:, 0])).numpy()


def by_confident_learning(features: torch.Tensor, given: np.ndarray) -> np.ndarray:
    """Off-diagonal items of the confident joint first, then the others, each by normalised margin.

    Probabilities are those of a logistic regression on standardised features, cross-fitted over the folds. An item
    counts as class j if its probability of j reaches the mean of those of the items labelled j; of several, the most
    probable one.
    """
    rows, num_classes = features.numpy().astype(np.float32), given.max() + 1
    fold = deal(torch.from_numpy(given), FOLDS, 0).numpy()
    probability = np.zeros((len(rows), num_classes))
    for part in range(FOLDS):
        known = fold != part
        scaler = StandardScaler().fit(rows[known])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it need not converge
            model = LogisticRegression(C=0.1, max_iter=40).fit(scaler.transform(rows[known]), given[known])
        probability[np.ix_(~known, model.classes_)] = model.predict_proba(scaler.transform(rows[~known]))
    places = np.arange(len(rows))
    own = probability[places, given]
    thresholds = np.array([own[given == label].mean() if (given == label).any() else 1 for label in range(num_classes)])
    confident = np.where(probability >= thresholds, probability, 0)
    off_diagonal = (confident.max(axis=1) > 0) & (confident.argmax(axis=1) != given)
    others = probability.copy()
    others[places, given] = -1
    ranking: np.ndarray = others.max(axis=1) - own + 2.0 * off_diagonal
    return ranking


METHODS: dict[str, Callable[[torch.Tensor, np.ndarray], np.ndarray]] = {
    "audit": by_audit,
    "kNN disagreement": by_neighbors,
    "confident learning": by_confident_learning,
}


# Injected copies


def injected_copies(data: str) -> dict[str, Any]:
    """Recall by kind of copy at the threshold with precision 0.99, and both at the default threshold."""
    items = load_data(Config(dataset=data)).test.items
    assert isinstance(items, ImageFiles)
    paths = [str(Path(path).absolute()) for path in items.paths[::EVERY]]
    random = np.random.default_rng(0)
    chosen = random.permutation(len(paths))[: len(COPIES) * COPIES_OF_A_KIND]
    truth, kinds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number, original in enumerate(chosen.tolist()):
            kind = list(COPIES)[number % len(COPIES)]
            with Image.open(paths[original]) as image:
                copy, options = COPIES[kind](image.convert("RGB"), random)
            file = Path(folder) / f"{number}.{'jpg' if options else 'png'}"
            copy.save(file, **options)
            truth[original, len(paths)] = number
            kinds[number] = kind
            paths.append(str(file))
        start = time.perf_counter()
        seen = inspect_items(ImageFiles(tuple(paths)))
        looking = time.perf_counter() - start
    assert seen.thumbnails is not None
    start = time.perf_counter()
    # No encoder: candidates are neighbours by thumbnails alone, to which an audit adds neighbours by embedding.
    pixels = torch.from_numpy(seen.thumbnails).float().mean(dim=3).flatten(1)
    pairs = same_pictures(seen.thumbnails, candidate_pairs(pixels, seen.thumbnails), least=0.5)
    comparing = time.perf_counter() - start
    ranked = sorted(pairs, key=lambda pair: -pair.similarity)
    right = np.array([(pair.first, pair.second) in truth for pair in ranked])
    precise = np.flatnonzero(np.cumsum(right) >= 0.99 * np.arange(1, len(right) + 1))
    threshold = ranked[precise[-1]].similarity

    def found(least: float) -> dict[str, float]:
        numbers = [truth[p.first, p.second] for p in ranked if p.similarity >= least and (p.first, p.second) in truth]
        hits = [kinds[number] for number in numbers]
        return {kind: hits.count(kind) / list(kinds.values()).count(kind) for kind in COPIES}

    at_default = [hit for hit, pair in zip(right, ranked, strict=True) if pair.similarity >= SAME_PICTURE]
    return {
        "copies": data.partition(":")[0],
        "originals": len(paths) - len(truth),
        "threshold": threshold,
        "recall": found(threshold),
        "default": SAME_PICTURE,
        "default_recall": found(SAME_PICTURE),
        "default_precision": float(np.mean(at_default)),
        "looking_seconds": looking,
        "comparing_seconds": comparing,
    }


def _reencoded(image: Image.Image, random: np.random.Generator) -> tuple[Image.Image, dict[str, Any]]:
    return image, {"quality": 50}


def _resized(image: Image.Image, random: np.random.Generator) -> tuple[Image.Image, dict[str, Any]]:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC), {}


def _cropped(image: Image.Image, random: np.random.Generator) -> tuple[Image.Image, dict[str, Any]]:
    less_wide, less_high = round(0.05 * image.width), round(0.05 * image.height)
    left, top = int(random.integers(less_wide + 1)), int(random.integers(less_high + 1))
    return image.crop((left, top, left + image.width - less_wide, top + image.height - less_high)), {}


def _mirrored(image: Image.Image, random: np.random.Generator) -> tuple[Image.Image, dict[str, Any]]:
    return ImageOps.mirror(image), {}


COPIES = {
    "JPEG, quality 50": _reencoded,
    "half size": _resized,
    "cropped 5 %": _cropped,
    "mirrored": _mirrored,
}


# Speed


def speed(items: int) -> dict[str, Any]:
    """Seconds and memory for an audit of vectors of 64 numbers in 1000 classes, 5 % of them with wrong labels."""
    random = np.random.default_rng(0)
    labels = np.arange(items) % 1000
    vectors = 2 * random.standard_normal((1000, 64))[labels] + random.standard_normal((items, 64))
    features = torch.from_numpy(vectors.astype(np.float32))
    given = labels.copy()
    wrong = random.permutation(items)[: items // 20]
    given[wrong] = (given[wrong] + random.integers(1, 1000, size=len(wrong))) % 1000
    seen = Inspection(tuple(row.tobytes() for row in vectors.astype(np.float32)), None, {}, {})
    before, start = reset_peak_memory(), time.perf_counter()
    found = audit_items(features, torch.from_numpy(given), seen)
    seconds = time.perf_counter() - start
    hits = np.isin([one.row for one in itertools.islice(found.suspects, len(wrong))], wrong)
    return {
        "vectors": items,
        "seconds": seconds,
        "gigabytes": (peak_memory() - before) / 1e9,
        "precision": 100 * float(hits.sum()) / len(wrong),
    }


def text(rows: list[dict[str, Any]]) -> str:
    """Tables of flipped labels, copies and speed."""
    parts = []
    if flips := [row for row in rows if "noise" in row]:
        header = ["data", "items", "seeds", "flipped", *(f"{name}: AP, P@flips" for name in METHODS)]
        body = [
            [row["data"], str(row["items"]), str(row["seeds"]), f"{100 * row['share']:.0f} % {row['noise']}"]
            + [f"{row[name][0]:.1f}, {row[name][1]:.1f}" for name in METHODS]
            for row in flips
        ]
        parts.append(table(header, body))
    for row in rows:
        if "copies" in row:
            body = [
                [kind, f"{100 * row['recall'][kind]:.1f}", f"{100 * row['default_recall'][kind]:.1f}"]
                for kind in COPIES
            ]
            default = f"recall at the default {row['default']} (precision {100 * row['default_precision']:.1f})"
            title = f"recall at precision 99 (threshold {row['threshold']:.3f})"
            note = f"{row['copies']}: {row['originals']} images, {COPIES_OF_A_KIND} copies of each kind"
            parts.append(f"{note}\n\n{table(['copy', title, default], body)}")
        if "vectors" in row:
            parts.append(
                f"{row['vectors']} vectors of 64 numbers, 1000 classes: {row['seconds']:.0f} s, "
                f"{row['gigabytes']:.2f} GB above the data; P@flips {row['precision']:.1f}"
            )
    return "\n\n".join(parts)


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Average precision by data set and method, one panel for each kind and share of noise."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 2.9), layout="constrained")
        for axes, (kind, share) in zip(figure.subplots(1, len(NOISES), sharey=True), NOISES, strict=True):
            panel = [row for row in rows if row.get("noise") == kind and row["share"] == share]
            for place, (name, marker) in enumerate(zip(METHODS, "osD", strict=True)):
                heights = [row[name][0] for row in panel]
                axes.plot(range(len(panel)), heights, marker, color=COLORS[place], label=name, clip_on=False)
            axes.set(title=f"{100 * share:.0f} % {kind}", xlim=(-0.5, len(panel) - 0.5), ylim=(0, 100))
            axes.set_xticks(range(len(panel)), [row["data"] for row in panel], rotation=30)
            axes.grid(axis="y")
        figure.axes[0].set_ylabel("average precision (%)")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        return figure


if __name__ == "__main__":
    main()
