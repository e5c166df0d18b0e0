"""Initial head and centres, and the choices made on held-out training classes: start, length, interpolation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from softtriple.config import Config
from softtriple.data import Split, Texts, contiguous_labels
from softtriple.losses import Loss
from softtriple.models import Encoder
from softtriple.models.backbones.text import HashedNgrams, tfidf_table
from softtriple.models.features import Feed
from softtriple.models.heads import Head, Start, closed_form_head
from softtriple.progress import Reporter
from softtriple.training.auto import CUSTOM, trains_head_only, tunes_weights
from softtriple.training.choose import (
    IMAGE_STARTS,
    SENTENCE_STARTS,
    SHARES,
    TEXT_STARTS,
    VECTOR_STARTS,
    Division,
    Trial,
    best_choice,
    choose_share,
    choose_start,
    try_retrieval,
)
from softtriple.training.fit import fit
from softtriple.training.loading import QUIET

FEWEST_CLASSES = 4  # of which half are held out; fewer are too few to choose by
LOOKS = 10  # evaluations on held-out classes during a trial
SPLITS = 2  # of the training classes, over which the gain of training is averaged


def initialize_backbone(encoder: Encoder, train: Split) -> None:
    """Initialise the built-in text network so that it computes TF-IDF of its n-grams; others do not change."""
    if isinstance(train.items, Texts) and isinstance(encoder.preprocess, HashedNgrams):
        table = encoder.backbone.get_parameter("ngrams.weight")
        rows = encoder.preprocess(list(train.items.values))
        with torch.no_grad():
            table.copy_(tfidf_table(rows, encoder.preprocess.buckets, table.shape[1]))


def head_start(config: Config) -> Start:
    """The closed-form head that the resolved configuration describes."""
    model = config.model
    if model.head_init == "pca":
        return Start(0.0, 0.0, center=1.0)
    assert model.head_power != "auto"
    assert model.head_shrinkage != "auto"
    assert model.head_center != "auto"
    return Start(model.head_power, model.head_shrinkage, float(model.head_center), bool(model.head_standardize))


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """A head to train on fixed features, and what is needed to try settings on part of the training items."""

    encoder: Encoder
    features: Tensor  # of the training items: the input of the head
    labels: np.ndarray  # their classes, from 0 without gaps
    training: Feed
    splits: Sequence[Division]  # of the training items, for trials
    build_loss: Callable[[int], Loss]  # a fresh loss for a number of classes
    device: torch.device
    widths: tuple[int, ...]  # to which embeddings are truncated in the evaluation of trials
    given: Head | None = None  # the head to start from, of an earlier run
    gains: list[dict[tuple[int, float], Trial]] = field(default_factory=list)  # of each trial, added by `choose`


def choose(config: Config, problem: HeadProblem, reporter: Reporter) -> Config:
    """The configuration with the initial head and the length of training chosen; notes say how."""
    return _choose_length(_choose_start(config, problem, reporter), problem, reporter)


def _choose_start(config: Config, problem: HeadProblem, reporter: Reporter) -> Config:
    model, labels = config.model, problem.labels
    if model.head_init != "whitened" or config.train.start is not None:
        return config
    kinds = {"linear": VECTOR_STARTS, "text": TEXT_STARTS}
    starts = kinds.get(model.backbone, SENTENCE_STARTS if model.backbone.startswith("st:") else IMAGE_STARTS)
    given = {name: value for name in Start._fields if (value := getattr(model, f"head_{name}")) != "auto"}
    start, how = starts[0], "not chosen on held-out classes"
    # Closed-form heads need fewer classes to be compared than training does.
    enough = len(np.unique(labels)) >= FEWEST_CLASSES and np.bincount(labels).max() > 1
    if config.train.choose != "off" and not given and enough:
        with reporter.task("comparing starts on held-out classes") as update:
            start = choose_start(problem.features, labels, starts, problem.splits, problem.encoder.dim, update)
        how = "chosen on held-out training classes"
    start = start._replace(**given)
    reporter.note(f"head starts from {_describe(start)}, {how}")
    settings = {f"head_{name}": value for name, value in start._asdict().items()}
    return replace(config, model=replace(model, **settings))


def _choose_length(config: Config, problem: HeadProblem, reporter: Reporter) -> Config:
    train = config.train
    epochs = train.epochs
    assert epochs != "auto"
    wanted = train.choose != "off" and len(np.unique(problem.labels)) >= FEWEST_CLASSES
    open_choices = train.stop_after == "auto" and train.interpolate == "auto"
    possible = trains_head_only(config) and not config.loss.name.startswith(CUSTOM) and epochs > 0
    if wanted and open_choices and possible:
        splits = problem.splits[:SPLITS]
        # The final run draws the same random numbers as without trials.
        with torch.random.fork_rng(devices=[]), reporter.task("trying how long to train") as update:
            torch.manual_seed(train.seed)
            for number, (rows, held_out) in enumerate(splits):
                update(number, len(splits))
                start, ends = _trial(config, problem, rows)
                features, labels = problem.features[held_out], problem.labels[held_out]
                problem.gains.append(choose_share(start, ends, features, labels, problem.widths))
        chosen = best_choice(problem.gains)
        reporter.note(
            f"held-out training classes are retrieved best after {chosen.epochs} of {epochs} epochs, "
            f"{100 * chosen.share:.0f} % of the way from the start: "
            f"R@1 {100 * chosen.gain.recall:+.1f}, MAP@R {100 * chosen.gain.map_at_r:+.1f}"
        )
        return replace(config, train=replace(train, stop_after=chosen.epochs, interpolate=chosen.share))
    later = tunes_weights(config) and train.hold_out  # after training, by `choose_network_share`
    if train.interpolate == "auto" and not later:
        train = replace(train, interpolate=1.0)
    return replace(config, train=train)


def _trial(config: Config, problem: HeadProblem, rows: np.ndarray) -> tuple[Head, dict[int, Head]]:
    """The head before training on some of the items, and after every tenth of the epochs."""
    encoder, features = problem.encoder, problem.features[rows]
    numbers, classes = contiguous_labels(problem.labels[rows])
    start = problem.given
    if start is None:
        start = closed_form_head(features, torch.from_numpy(numbers), encoder.dim, head_start(config))
    encoder.set_head(*start)
    loss = problem.build_loss(len(classes)).to(problem.device)
    initialize_centers(loss, encoder, features, numbers)
    epochs = config.train.epochs
    assert epochs != "auto"
    every = max(1, epochs // LOOKS)
    ends: dict[int, Head] = {}

    def keep_head() -> dict[str, float]:
        ends[(len(ends) + 1) * every] = linear_head(encoder)
        return {}

    train = replace(config.train, evaluate_every=every, stop_after=epochs, compile="off")
    part = problem.training.only(rows, numbers)
    fit(train, encoder, loss, part, directory=None, evaluate=keep_head, device=problem.device, reporter=QUIET)
    return start, ends


def linear_head(encoder: Encoder) -> Head:
    """A copy of the head of ``encoder``, which must be linear."""
    assert isinstance(encoder.head, nn.Linear)
    weight, bias = (parameter.detach().cpu().clone() for parameter in (encoder.head.weight, encoder.head.bias))
    return weight, bias


@torch.no_grad()
def initialize_centers(loss: Loss, encoder: Encoder, features: Tensor, labels: np.ndarray) -> None:
    """Initialise the centres of ``loss`` from the embeddings of their classes by the current head."""
    device = next((parameter.device for parameter in loss.parameters()), torch.device("cpu"))
    assert encoder.head is not None
    head = encoder.head
    vectors = nn.functional.normalize(head(features.float().to(next(head.parameters()).device)), dim=-1)
    loss.initialize_centers(vectors.to(device), torch.from_numpy(labels).to(device))


def trained_values(encoder: Encoder) -> dict[str, Tensor]:
    """Copies of the parameters that will be trained, by name."""
    return {name: p.detach().cpu().clone() for name, p in encoder.named_parameters() if p.requires_grad}


@torch.no_grad()
def set_between(encoder: Encoder, start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float) -> None:
    """Set the trained parameters to ``share`` of the way from ``start`` to ``end`` (WiSE-FT, Wortsman et al., 2022)."""
    for name, parameter in encoder.named_parameters():
        if name in start:
            parameter.copy_(torch.lerp(start[name].double(), end[name].double(), share))


def choose_network_share(
    config: Config,
    encoder: Encoder,
    start: Mapping[str, Tensor],
    labels: np.ndarray,
    embed: Callable[[], Tensor],
    reporter: Reporter,
) -> Config:
    """Interpolate the trained layers between ``start`` and the end, where held-out classes are retrieved best.

    ``embed`` returns the current embeddings of the held-out items, whose classes are ``labels``.
    """
    end, trials = trained_values(encoder), {}
    for share in (0.0, *SHARES):
        set_between(encoder, start, end, share)
        trials[share] = try_retrieval(embed(), labels, np.arange(len(labels)))
    chosen = max(trials, key=lambda share: trials[share].score)
    set_between(encoder, start, end, chosen)
    recall, map_at_r = (100 * (b - a) for a, b in zip(trials[0.0], trials[chosen], strict=True))
    reporter.note(
        f"held-out training classes are retrieved best {100 * chosen:.0f} % of the way from the start: "
        f"R@1 {recall:+.1f}, MAP@R {map_at_r:+.1f}"
    )
    return replace(config, train=replace(config.train, interpolate=chosen))


def _describe(start: Start) -> str:
    whitened = f"within-class whitening (power {start.power:g}, shrinkage {start.shrinkage:g})"
    return f"{'standardised columns, ' if start.standardize else ''}{whitened if start.power else 'PCA'}"
