"""Do several centres per class matter? The study of docs/centers.md, on features of CUB-200-2011.

    python benchmarks/centers.py --data cub:PATH [--steps 460]

A linear head on cached features is trained with labels of growing coarseness: species, random groups of 2, 4 and 8
species, and families. 4-fold cross-validation over the training classes covers the grid; the test half is used once,
for the choices that follow from it. Results are saved after each label set, and finished ones are not run again. The
figure, results/centers.svg, shows what several centres gain over one by the number of species per class.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from measuring import RESULTS, machine, save, table
from sklearn.metrics import adjusted_mutual_info_score
from torch import Tensor

from softtriple import Encoder, SoftTripleLoss, evaluate
from softtriple.data import contiguous_labels, load_benchmark
from softtriple.losses.centers import nearest_centers
from softtriple.losses.functional import center_spread, margin_softmax
from softtriple.models.features import Feeds, feature_rows
from softtriple.models.heads import Start, closed_form_head
from softtriple.progress import Reporter
from softtriple.report.charts import STYLE, line_style
from softtriple.training.auto import LARGER_INPUT

CENTERS = (1, 2, 5, 10, 20)
GAMMAS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
TAUS = (0.0, 0.2)
FOLDS, DIM, BATCH = 4, 64, 128
LR, CENTER_LR = 4e-4, 1e-2
START = Start(center=1.0)
SEEDS = 3  # of the runs on the test half
PAPER = (0.1, 0.2, 0.0, False)  # gamma, tau, no option


class Setting(NamedTuple):
    """What is varied; ``learned`` learns a gamma per class."""

    k: int
    gamma: float = 0.1
    tau: float = 0.2
    synthesis: float = 0.0
    learned: bool = False


DRAWN = (*(Setting(k) for k in CENTERS[1:]), Setting(10, gamma=0.5, tau=0.0))


class Part(NamedTuple):
    """Items with the labels of training and the species behind them."""

    features: Tensor
    labels: np.ndarray
    species: np.ndarray


def grid() -> list[Setting]:
    """The plan: every K, gamma and tau (with one centre they have no effect), then the options."""
    whole = [Setting(1), *itertools.starmap(Setting, itertools.product(CENTERS[1:], GAMMAS, TAUS))]
    apart = [Setting(k, tau=-0.2) for k in CENTERS[1:]]
    synthetic = [Setting(k, synthesis=share) for k in (1, 5, 10) for share in (0.5, 1.0)]
    return [*whole, *apart, *synthetic, *(Setting(k, learned=True) for k in CENTERS[1:])]


def label_sets(names: tuple[str, ...], species: np.ndarray) -> dict[str, np.ndarray]:
    """Labels of training by name: for each item, the class that its species belongs to."""
    present = np.unique(species)
    sets = {"species": species}
    for size in (2, 4, 8):
        order = np.random.default_rng(size).permutation(present)
        group = {one: place // size for place, one in enumerate(order)}
        sets[f"groups of {size}"] = np.array([group[one] for one in species])
    families = [name.rsplit("_", 1)[-1].rsplit(" ", 1)[-1] for name in names]
    number = {family: n for n, family in enumerate(sorted(set(families)))}
    sets["families"] = np.array([number[families[one]] for one in species])
    return sets


def folds(labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to train on and rows held out, for each fold of the classes."""
    fold = np.random.default_rng(0).permutation(labels.max() + 1) % FOLDS
    for number in range(FOLDS):
        held_out = fold[labels] == number
        yield np.flatnonzero(~held_out), np.flatnonzero(held_out)


def fit(start: tuple[Tensor, Tensor], part: Part, setting: Setting, steps: int, seed: int) -> tuple[Any, Any]:
    """A head from ``start`` and its loss, trained on ``part``."""
    torch.manual_seed(seed)
    labels = torch.from_numpy(part.labels)
    head = torch.nn.Linear(part.features.shape[1], DIM)
    with torch.no_grad():
        head.weight.copy_(start[0])
        head.bias.copy_(start[1])
    loss = SoftTripleLoss(
        int(labels.max()) + 1, DIM, setting.k,
        gamma=setting.gamma, tau=setting.tau, synthesis=setting.synthesis, validate=False,
    )  # fmt: skip
    with torch.no_grad():
        loss.initialize_centers(head(part.features), labels)
    log_gamma = torch.full((loss.num_classes,), setting.gamma).log().requires_grad_(setting.learned)
    groups = [
        {"params": list(head.parameters()), "base": LR},
        {"params": list(loss.parameters()), "base": CENTER_LR},
        {"params": [log_gamma] if setting.learned else [], "base": CENTER_LR},
    ]
    optimizer = torch.optim.Adam([{**group, "lr": group["base"]} for group in groups if group["params"]], fused=True)
    rows = torch.cat([torch.randperm(len(labels)) for _ in range(-(-steps * BATCH // len(labels)))])
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * (1 + np.cos(np.pi * step / steps)) / 2
        batch = rows[step * BATCH : (step + 1) * BATCH]
        embeddings = head(part.features[batch])
        if setting.learned:
            value = _with_gammas(embeddings, labels[batch], loss, log_gamma.exp())
        else:
            value = loss(embeddings, labels[batch])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return head, loss


def _with_gammas(embeddings: Tensor, labels: Tensor, loss: SoftTripleLoss, gammas: Tensor) -> Tensor:
    """The objective with a gamma for each class."""
    unit, centers = F.normalize(embeddings, dim=-1), F.normalize(loss.centers, dim=-1)
    similarity = torch.einsum("bd,ckd->bck", unit, centers)
    weights = F.softmax(similarity / gammas[:, None], dim=-1)
    value = margin_softmax((weights * similarity).sum(dim=-1), labels, loss.scale, loss.margin)
    return value + loss.tau * center_spread(centers)


@torch.no_grad()
def measure(head: Any, loss: SoftTripleLoss, trained: Part, unseen: Part) -> dict[str, float]:
    """Retrieval of unseen items by species and by class, and what the centres of training classes stand for."""
    vectors = F.normalize(head(unseen.features), dim=-1)
    fine, coarse = (
        evaluate(vectors, torch.from_numpy(labels), recall_at=(1,), kmeans_restarts=0, bootstrap=0)
        for labels in (unseen.species, unseen.labels)
    )
    inside = F.normalize(head(trained.features), dim=-1)
    groups = nearest_centers(inside, torch.from_numpy(trained.labels), loss.centers)
    return {
        "fine recall@1": fine.recall[1],
        "class recall@1": coarse.recall[1],
        "map_at_r": fine.map_at_r,
        "agreement": float(adjusted_mutual_info_score(trained.species, groups.numpy())),
        "distinct centers": loss.distinct_centers().float().mean().item(),
    }


def take(part: Part, rows: np.ndarray) -> Part:
    """Some rows, with labels from 0 without gaps."""
    return Part(part.features[rows], contiguous_labels(part.labels[rows])[0], part.species[rows])


def load(data: str) -> tuple[dict[str, Part], dict[str, Part]]:
    """The training half and the test half with each set of labels; features as training with the defaults has them."""
    benchmark = load_benchmark(data)
    encoder = Encoder.from_backbone(
        "efficientnet-lite0", dim=DIM, pooling="average+max", layer_norm=True,
        input_size=LARGER_INPUT["efficientnet-lite0"],
    )  # fmt: skip
    encoder.freeze_batch_norm("statistics")
    feeds = Feeds(encoder, reporter=Reporter(), frozen=encoder.set_trainable("head"), cache_bytes=8e9)
    halves = []
    for split in (benchmark.train, benchmark.test):
        features = encoder.head_input(feature_rows(encoder, feeds.evaluation(split)))
        species = contiguous_labels(split.labels)[0]
        names = tuple(benchmark.class_names[label] for label in np.unique(split.labels))
        sets = label_sets(names, species)
        halves.append({name: Part(features, labels, species) for name, labels in sets.items()})
    return halves[0], halves[1]


def study(training: Part, test: Part, steps: int) -> dict[str, Any]:
    """The grid on the folds of ``training``; then one centre, the paper's ten and the best of the grid on ``test``."""
    trials: dict[Setting, list[dict[str, float]]] = {setting: [] for setting in grid()}
    for rows, held_out in folds(training.labels):
        trained, unseen = take(training, rows), take(training, held_out)
        start = closed_form_head(trained.features, torch.from_numpy(trained.labels), DIM, START)
        for setting in trials:
            trials[setting].append(measure(*fit(start, trained, setting, steps, seed=0), trained, unseen))
    means = {s: {m: float(np.mean([t[m] for t in found])) for m in found[0]} for s, found in trials.items()}
    best = max(means, key=lambda setting: means[setting]["fine recall@1"] + means[setting]["map_at_r"])
    start = closed_form_head(training.features, torch.from_numpy(training.labels), DIM, START)
    tests = {
        name: [measure(*fit(start, training, setting, steps, seed), training, test) for seed in range(SEEDS)]
        for name, setting in {"one centre": Setting(1), "the paper's": Setting(10), "best": best}.items()
    }
    species_per_class = len(np.unique(training.species)) / len(np.unique(training.labels))
    return {
        "modes": species_per_class,
        "validation": [{**s._asdict(), **means[s], "folds": trials[s]} for s in trials],
        "best": best._asdict(),
        "test": tests,
    }


def text(results: dict[str, Any]) -> str:
    """Two tables: cross-validation by K at the paper's gamma and tau, and the test half."""
    lines = []
    for name, result in results.items():
        for row in result["validation"]:
            if (row["gamma"], row["tau"], row["synthesis"], row["learned"]) == PAPER:
                lines.append([name, f"{result['modes']:.1f}", str(row["k"]), *_percent(row)])
    columns = ["labels", "modes per class", "K", "fine R@1", "class R@1", "MAP@R", "AMI", "distinct centres"]
    tests = []
    for name, result in results.items():
        for which, seeds in result["test"].items():
            means = {metric: float(np.mean([seed[metric] for seed in seeds])) for metric in seeds[0]}
            best = ", ".join(f"{k} {v:g}" for k, v in result["best"].items()) if which == "best" else ""
            tests.append([name, f"{which} {best}".strip(), *_percent(means)])
    return table(columns, lines) + "\n\n" + table(["labels", "setting", *columns[3:]], tests)


def draw(results: dict[str, Any]) -> None:
    """What several centres gain over one by the number of species in a class, with the paper's settings and others."""
    ordered = sorted(results.items(), key=lambda item: item[1]["modes"])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, (metric, name) in zip(panels, {"fine recall@1": "R@1", "map_at_r": "MAP@R"}.items(), strict=True):
            for place, setting in enumerate(DRAWN):
                gains = np.array([100 * _gains(result, setting, metric) for _, result in ordered])
                color, dashes = line_style(place)
                axes.errorbar(
                    np.arange(len(gains)) + 0.08 * (place - 2), gains.mean(axis=1),
                    gains.std(axis=1, ddof=1) / FOLDS**0.5, label=f"K = {setting.k}, γ = {setting.gamma:g}",
                    color=color, linestyle=(0, dashes) if dashes else "-", marker="os^Dv"[place],
                    capsize=3, linewidth=1.8, markersize=5,
                )  # fmt: skip
            axes.axhline(0, color="#888888", linewidth=1)
            ticks = [f"{result['modes']:.1f}\n{labels}" for labels, result in ordered]
            axes.set_xticks(range(len(ticks)), ticks, fontsize=7)
            axes.set(xlabel="species per class", ylabel=f"gain in {name} of species, points")
            axes.grid(axis="y")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(RESULTS / "centers.svg")


def _gains(result: dict[str, Any], setting: Setting, metric: str) -> np.ndarray:
    """What a setting gains over one centre, for each fold."""
    by_fold = {
        Setting(**{name: row[name] for name in Setting._fields}): np.array([fold[metric] for fold in row["folds"]])
        for row in result["validation"]
    }
    return by_fold[setting] - by_fold[Setting(1)]


def _percent(row: dict[str, float]) -> list[str]:
    shares = [f"{100 * row[metric]:.2f}" for metric in ("fine recall@1", "class recall@1", "map_at_r", "agreement")]
    return [*shares, f"{row['distinct centers']:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=460)
    parser.add_argument("--name", default="centers", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    file = RESULTS / f"{options.name}.json"
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    results: dict[str, Any] = {row["labels"]: row for row in rows}
    training, test = load(options.data)
    for name in training:
        if name in results:
            continue
        results[name] = {"labels": name, **study(training[name], test[name], options.steps)}
        save(options.name, machine("torch"), list(results.values()), text(results))
        print(text({name: results[name]}), flush=True)
    draw(results)


if __name__ == "__main__":
    main()
