"""SoftTriple as a scikit-learn estimator: learns an embedding of vectors from labels, transforms and classifies.

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
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
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


class SoftTripleEmbedding(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Supervised embedding: a linear map or a multilayer perceptron to unit vectors, close within a class.

    Features should be on a similar scale: put a ``StandardScaler`` before it. A linear map starts from within-class
    whitening if ``n_components`` is at least 2 and at most one more than there are features, else at random.

    Args:
        n_components: dimension of the embedding; None is one more than there are features, at most 32.
        hidden_layer_sizes: sizes of the hidden layers; none for a linear map.
        centers_per_class: K of SoftTriple; "auto" is 10 for large classes and fewer for small ones.
        scale, gamma, margin, tau: parameters of `SoftTripleLoss`.
        epochs: passes over the data; learning rates drop to a tenth for the last fifth of them.
        batch_size: items per optimiser step.
        learning_rate, center_learning_rate: learning rates of Adam for the map and for the centres.
        random_state: seed or generator for the initial weights and the order of items.

    Attributes:
        classes_: the classes, in the order of the columns of ``decision_function``.
        encoder_: the trained `Encoder`, in float64.
        loss_: the trained `SoftTripleLoss`, with the centres.
        loss_curve_: mean loss of each epoch.
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
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "SoftTripleEmbedding":  # noqa: N803
        """Learn the embedding of ``X`` from the classes ``y``."""
        X, y = validate_data(self, X, y, dtype=np.float64)  # noqa: N806
        check_classification_targets(y)
        self._check_parameters()
        self.classes_, labels = np.unique(y, return_inverse=True)
        features, targets = torch.tensor(X, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with torch.random.fork_rng(devices=[]):  # leaves torch's global generator unchanged
            torch.manual_seed(seed)
            self.encoder_, self.loss_ = self._build(features, targets)
            self.loss_curve_ = list(self._epochs(features, targets, seed))
        # In float64 an embedding does not visibly depend on the other items of the batch.
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

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most similar class of each row of ``X``."""
        nearest = self._similarities(X).argmax(axis=1)
        return np.asarray(self.classes_[nearest])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.encoder_.dim

    def _check_parameters(self) -> None:
        """ValueError for a parameter that `SoftTripleLoss` does not check itself."""
        if self.n_components is not None:
            self._require("n_components", "an int in the range [1, inf), or None", _is_size)
        for name in ("epochs", "batch_size"):
            self._require(name, "an int in the range [1, inf)", _is_size)
        for name in ("learning_rate", "center_learning_rate"):
            self._require(name, "a float in the range [0, inf)", _is_rate)
        self._require("hidden_layer_sizes", "an iterable of ints in the range [1, inf), such as (16,)", _are_sizes)

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
    """A closed-form map to ``dim - 1`` components, chosen on held-out classes, beside a constant component.

    Unit embeddings lose the length of what they are made from. A constant of about that length keeps it: on the sphere,
    near the constant's pole, distances are almost those of the vectors. Iris gains 9 points of accuracy by it.
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


def _is_rate(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < math.inf
