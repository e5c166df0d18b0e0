"""SoftTriple as a scikit-learn estimator: a supervised embedding of vectors, and a classifier.

>>> from sklearn.datasets import load_iris
>>> from sklearn.pipeline import make_pipeline
>>> from sklearn.preprocessing import StandardScaler
>>> X, y = load_iris(return_X_y=True)
>>> model = make_pipeline(StandardScaler(), SoftTripleEmbedding(8, random_state=0)).fit(X, y)
>>> model.transform(X).shape, model.score(X, y) > 0.9
((150, 8), True)
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from softtriple.config import TrainConfig
from softtriple.data import shuffled
from softtriple.errors import UserError
from softtriple.losses import SoftTripleLoss
from softtriple.models import Encoder, EncoderConfig
from softtriple.models.heads import Head, Start, closed_form_head
from softtriple.training.auto import centers_for
from softtriple.training.choose import VECTOR_STARTS, choose_start
from softtriple.training.fit import train_epoch
from softtriple.training.optim import build_optimizer, set_rates

MOST_COMPONENTS = 32
FOLDS = 3  # of cross-fitting, for the threshold of unknown rows


class SoftTripleEmbedding(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Supervised embedding: a linear map or multilayer perceptron to unit vectors that are close within a class.

    Features should have similar scales: put a ``StandardScaler`` before it. A linear map is initialised by within-class
    whitening if ``n_components`` is from 2 to the number of features plus one, else randomly.

    Args:
        n_components: dimension of the embedding; None is the number of features plus one, at most 32.
        hidden_layer_sizes: sizes of the hidden layers; none for a linear map.
        centers_per_class: K of SoftTriple; "auto" is 10 for large classes and fewer for small ones.
        scale, gamma, margin, tau: parameters of `SoftTripleLoss`.
        epochs: passes over the data; learning rates drop to a tenth for the last fifth of them.
        batch_size: items per optimiser step.
        learning_rate, center_learning_rate: learning rates of Adam for the map and for the centres.
        unknown: label that ``predict`` returns for a row unlike any class, such as -1; None always predicts a class.
            The threshold comes from three-fold cross-fitting, which makes ``fit`` take about three times as long.
        false_reject: share of rows of the known classes for which ``predict`` may return ``unknown``.
        random_state: seed or generator for the initial weights and the order of items.

    Attributes:
        classes_: the classes, in the order of the columns of ``decision_function``.
        encoder_: the trained `Encoder`, in float64.
        loss_: the trained `SoftTripleLoss`, with the centres.
        loss_curve_: mean loss of each epoch.
        threshold_: similarity to the nearest class below which a row is ``unknown``; only if that is given.
        n_features_in_, feature_names_in_: number and names of the features seen in ``fit``.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        hidden_layer_sizes: Sequence[int] = (),
        centers_per_class: int | Literal["auto"] = "auto",
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        epochs: int = 30,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        center_learning_rate: float = 1e-2,
        unknown: Any = None,
        false_reject: float = 0.05,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.centers_per_class = centers_per_class
        self.scale = scale
        self.gamma = gamma
        self.margin = margin
        self.tau = tau
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.center_learning_rate = center_learning_rate
        self.unknown = unknown
        self.false_reject = false_reject
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "SoftTripleEmbedding":  # noqa: N803
        """Learn the embedding of ``X`` from the classes ``y``."""
        X, y = validate_data(self, X, y, dtype=np.float64)  # noqa: N806
        check_classification_targets(y)
        self._check_parameters()
        self.classes_, labels = np.unique(y, return_inverse=True)
        features, targets = torch.tensor(X, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        if self.unknown is not None:
            self._check_unknown(labels)
            self.threshold_ = float(np.quantile(self._held_out_similarities(X, y, labels, seed), self.false_reject))
        with torch.random.fork_rng(devices=[]):  # leaves torch's global generator unchanged
            torch.manual_seed(seed)
            self.encoder_, self.loss_ = self._build(features, targets)
            self.loss_curve_ = list(self._epochs(features, targets, seed))
        # In float64, rounding errors that depend on the other items of a batch are invisible.
        self.encoder_.double().eval()
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "items dim"]:  # noqa: N803
        """Unit embeddings of ``X``, in the precision of ``X``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)  # noqa: N806
        with torch.no_grad():
            vectors: Tensor = self.encoder_(torch.tensor(X, dtype=torch.float64))
        return vectors.numpy().astype(X.dtype)

    def decision_function(self, X: Any) -> Float[np.ndarray, "items ..."]:  # noqa: N803
        """Similarity of each row of ``X`` to each class; for two classes, to the second minus to the first."""
        similarities = self._similarities(X)
        return similarities[:, 1] - similarities[:, 0] if len(self.classes_) == 2 else similarities

    def predict_proba(self, X: Any) -> Float[np.ndarray, "items classes"]:  # noqa: N803
        """Probability of each class for each row of ``X``: the softmax of scaled similarities, as in the loss.

        Probabilities sum to one over the known classes, even for a row unlike any of them.
        """
        return np.asarray(softmax(self.scale * self._similarities(X), axis=1))

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most similar class of each row of ``X``, or ``unknown`` if that is set and no class is similar enough."""
        similarities = self._similarities(X)
        nearest = np.asarray(self.classes_[similarities.argmax(axis=1)])
        if self.unknown is None:
            return nearest
        return np.where(similarities.max(axis=1) < self.threshold_, self.unknown, nearest)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.dim

    def _check_parameters(self) -> None:
        """ValueError for an invalid parameter, of those that `SoftTripleLoss` does not check."""
        if self.n_components is not None:
            self._require("n_components", "an int in the range [1, inf), or None", _is_size)
        for name in ("epochs", "batch_size"):
            self._require(name, "an int in the range [1, inf)", _is_size)
        for name in ("learning_rate", "center_learning_rate"):
            self._require(name, "a float in the range [0, inf)", _is_rate)
        self._require("false_reject", "a float in the range [0, 1)", _is_share)
        self._require("hidden_layer_sizes", "an iterable of ints in the range [1, inf), such as (16,)", _are_sizes)

    def _check_unknown(self, labels: Int64[np.ndarray, " items"]) -> None:
        """ValueError if ``unknown`` could be mistaken for a class, or if a class is too small to cross-fit."""
        same_kind = np.asarray(self.unknown).dtype.kind in {"i": "iu", "u": "iu"}.get(
            self.classes_.dtype.kind, self.classes_.dtype.kind + "O"
        )
        if not same_kind or self.unknown in self.classes_.tolist():
            raise UserError(
                f"The 'unknown' parameter of {type(self).__name__} must be of the type of the classes "
                f"({self.classes_.dtype}) and not one of them. Got {self.unknown!r} instead."
            )
        if len(self.classes_) < 2 or np.bincount(labels).min() < 2:
            raise UserError(f"unknown = {self.unknown!r} needs two or more classes with at least two items each")

    def _held_out_similarities(
        self,
        X: np.ndarray,  # noqa: N803
        y: np.ndarray,
        labels: Int64[np.ndarray, " items"],
        seed: int,
    ) -> Float[np.ndarray, " items"]:
        """Similarity of each row to its most similar class, by models that were trained without the row."""
        order = np.random.default_rng(seed).permutation(len(labels))
        order = order[labels[order].argsort(kind="stable")]
        fold = np.empty(len(labels), dtype=np.int64)
        fold[order] = (np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])) % FOLDS
        similarities = np.empty(len(labels))
        for number in np.unique(fold):
            model = clone(self).set_params(unknown=None, random_state=seed).fit(X[fold != number], y[fold != number])
            similarities[fold == number] = model._similarities(X[fold == number]).max(axis=1)
        return similarities

    def _require(self, name: str, expected: str, is_valid: Callable[[Any], bool]) -> None:
        if not is_valid(value := getattr(self, name)):
            raise UserError(
                f"The {name!r} parameter of {type(self).__name__} must be {expected}. Got {value!r} instead."
            )

    def _build(
        self, features: Float[Tensor, "items features"], targets: Int64[Tensor, " items"]
    ) -> tuple[Encoder, SoftTripleLoss]:
        items, in_features = features.shape
        hidden = tuple(self.hidden_layer_sizes)
        class_sizes = np.bincount(targets.numpy())
        dim = min(MOST_COMPONENTS, in_features + 1) if self.n_components is None else self.n_components
        encoder = Encoder(
            EncoderConfig(
                backbone="mlp" if hidden else "linear",
                dim=dim,
                in_features=in_features,
                hidden=hidden or None,
            )
        )
        if not hidden and 2 <= dim <= min(items, in_features + 1):
            encoder.set_head(*_start(features, targets, dim))
        loss = SoftTripleLoss(
            len(class_sizes),
            dim,
            centers_for(class_sizes) if self.centers_per_class == "auto" else self.centers_per_class,
            scale=self.scale,
            gamma=self.gamma,
            margin=self.margin,
            tau=self.tau,
        )
        with torch.no_grad():
            loss.initialize_centers(encoder.eval()(features), targets)
        return encoder, loss

    def _epochs(self, features: Float[Tensor, "items features"], targets: Tensor, seed: int) -> Iterator[float]:
        """Train and yield the mean loss of each epoch."""
        config = TrainConfig(
            epochs=self.epochs,
            lr=self.learning_rate,
            center_lr=self.center_learning_rate,
            schedule="step",
            milestones=(self.epochs - self.epochs // 5,),
        )
        optimizer = build_optimizer(self.encoder_, self.loss_, config)
        for epoch in range(self.epochs):
            set_rates(optimizer, epoch, config)
            rows = shuffled(len(features), self.batch_size, seed, epoch)
            batches = ((features[batch], targets[batch]) for batch in rows)
            losses = [step.loss for step in train_epoch(self.encoder_, self.loss_, batches, optimizer)]
            yield torch.stack(losses).mean().item()

    def _similarities(self, X: Any) -> Float[np.ndarray, "items classes"]:  # noqa: N803
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)  # noqa: N806
        with torch.no_grad():
            return self.loss_.similarities(self.encoder_(torch.tensor(X))).numpy()


def _start(features: Float[Tensor, "items features"], labels: Int64[Tensor, " items"], dim: int) -> Head:
    """A closed-form map to ``dim - 1`` components, chosen on held-out classes, and one constant component.

    Normalisation discards the lengths of vectors. A constant component of about that length preserves them: near the
    pole of the sphere, distances are almost those of the vectors. It gains 9 points of accuracy on iris.
    """
    sizes = labels.bincount()
    # Two classes are too few to hold one of them out.
    choosable = len(sizes) > 2 and sizes.max() > 1
    start = choose_start(features, labels.numpy(), VECTOR_STARTS) if choosable else Start()
    weight, bias = closed_form_head(features, labels, dim - 1, start)
    length = (features.double() @ weight.T + bias).square().sum(dim=1).mean().sqrt()
    return torch.cat([weight, torch.zeros_like(weight[:1])]), torch.cat([bias, length[None]])


def _is_size(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) > 0


def _are_sizes(value: Any) -> bool:
    return isinstance(value, Iterable) and all(map(_is_size, value))


def _is_share(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < 1


def _is_rate(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < math.inf
