"""SoftTripleEmbedding among scikit-learn's own."""

import copy
import io
from collections.abc import Callable

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from softtriple import SoftTripleEmbedding

QUICK = SoftTripleEmbedding(4, epochs=10)

# Tests of how well many fits do are unchecked: checking the annotations in every step takes longer than the step.


@parametrize_with_checks([QUICK, clone(QUICK).set_params(hidden_layer_sizes=(16,))])
@pytest.mark.usefixtures("unchecked")  # it sets parameters to nonsense, which the annotations would refuse first
def test_what_scikit_learn_checks(estimator, check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it scikit-learn skips its check of the array API
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, ...]:
    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X, y, random_state=0, stratify=y))


@pytest.fixture(scope="module")
def fitted(digits) -> SoftTripleEmbedding:
    return SoftTripleEmbedding(epochs=15, random_state=0).fit(digits[0], digits[2])


def test_digits(digits, fitted: SoftTripleEmbedding) -> None:
    X, held_out, y, truth = digits
    assert fitted.score(held_out, truth) > 0.96
    neighbors = KNeighborsClassifier(1).fit(fitted.transform(X), y)
    assert neighbors.score(fitted.transform(held_out), truth) > 0.96
    assert len(fitted.loss_curve_) == fitted.epochs
    assert fitted.loss_curve_[-1] < fitted.loss_curve_[0]


def test_vectors_are_of_unit_length_in_the_precision_of_the_input(digits, fitted: SoftTripleEmbedding) -> None:
    for dtype in (np.float32, np.float64):
        vectors = fitted.transform(digits[1].astype(dtype))
        assert vectors.dtype == dtype
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert fitted.get_feature_names_out()[:2].tolist() == ["softtripleembedding0", "softtripleembedding1"]
    assert len(fitted.get_feature_names_out()) == vectors.shape[1] == 32


def test_similarities_are_those_of_the_loss(digits, fitted: SoftTripleEmbedding) -> None:
    vectors = torch.tensor(fitted.transform(digits[1]))
    expected = fitted.loss_.similarities(vectors).detach().numpy()
    np.testing.assert_allclose(fitted.decision_function(digits[1]), expected, rtol=1e-6)
    assert np.array_equal(fitted.predict(digits[1]), expected.argmax(axis=1))


def test_probabilities_add_up_and_agree_with_the_prediction(digits, fitted: SoftTripleEmbedding) -> None:
    _, held_out, _, truth = digits
    shares = fitted.predict_proba(held_out)
    assert shares.shape == (len(held_out), 10)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert np.array_equal(fitted.classes_[shares.argmax(axis=1)], fitted.predict(held_out))
    said, right = shares.max(axis=1), fitted.predict(held_out) == truth
    assert abs(said.mean() - right.mean()) < 0.05


@pytest.mark.parametrize("unknown", [-1, "unknown"])
@pytest.mark.usefixtures("unchecked")
def test_rows_of_another_class_are_unknown_on_request(unknown: int | str) -> None:
    X, y = load_digits(return_X_y=True)
    names = y if unknown == -1 else np.array([f"digit {label}" for label in y])
    known = y < 8
    train, test = np.flatnonzero(known)[::3], np.flatnonzero(known)[1::3]
    model = SoftTripleEmbedding(epochs=5, unknown=unknown, false_reject=0.05, random_state=0)
    model.fit(X[train], names[train])
    rejected = (model.predict(X[test]) == unknown).mean()
    assert 0.01 < rejected < 0.12
    assert (model.predict(X[~known]) == unknown).mean() > 0.5
    assert set(model.predict(X)) == {*names[known], unknown}
    assert list(model.classes_) == sorted(set(names[known]))


@pytest.mark.parametrize("unknown", [1, "unknown"])
def test_the_answer_for_unknown_rows_cannot_be_a_class(unknown: int | str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=r"'unknown' .* not one of them"):
        SoftTripleEmbedding(unknown=unknown).fit(X, y)
    with pytest.raises(ValueError, match="at least two items"):
        SoftTripleEmbedding(unknown=-1).fit(X[:101], y[:101])


def test_the_same_seed_gives_the_same_and_leaves_torch_alone() -> None:
    X, y = load_iris(return_X_y=True)
    before = torch.get_rng_state()
    first, again = (SoftTripleEmbedding(3, epochs=2, random_state=7).fit(X, y).transform(X) for _ in range(2))
    other = SoftTripleEmbedding(3, epochs=2, random_state=8).fit(X, y).transform(X)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_travels(digits, fitted: SoftTripleEmbedding) -> None:
    file = io.BytesIO()
    joblib.dump(fitted, file)
    file.seek(0)
    for other in (joblib.load(file), copy.deepcopy(fitted)):
        assert np.array_equal(other.transform(digits[1]), fitted.transform(digits[1]))
    assert clone(fitted).get_params() == fitted.get_params()


@pytest.mark.parametrize("load", [load_iris, load_wine, load_digits, load_breast_cancer])
@pytest.mark.usefixtures("unchecked")
def test_neighbors_lose_nothing_against_the_vectors_themselves(load: Callable[..., tuple[np.ndarray, ...]]) -> None:
    X, y = load(return_X_y=True)
    if len(X) > 1000:  # digits: every third item, which takes a third of the time
        X, y = X[::3], y[::3]
    plain = make_pipeline(StandardScaler(), KNeighborsClassifier(5))
    learned = make_pipeline(StandardScaler(), SoftTripleEmbedding(random_state=0), KNeighborsClassifier(5))
    assert cross_val_score(learned, X, y, cv=5).mean() >= cross_val_score(plain, X, y, cv=5).mean()


def test_the_number_of_components_follows_the_features() -> None:
    random = np.random.default_rng(0)
    for features, components in ((1, 2), (4, 5), (31, 32), (50, 32)):
        X, y = random.standard_normal((24, features)), np.arange(24) % 3
        assert SoftTripleEmbedding(epochs=1, random_state=0).fit(X, y).transform(X).shape == (24, components)


@pytest.mark.usefixtures("unchecked")
def test_the_length_of_vectors_is_not_lost() -> None:
    """Two classes in the same directions at different distances: unit vectors alone could not tell them apart."""
    random = np.random.default_rng(0)
    directions = random.standard_normal((200, 3))
    y = np.arange(200) % 2
    X = directions / np.linalg.norm(directions, axis=1, keepdims=True) * np.where(y == 0, 1.0, 3.0)[:, None]
    learned = make_pipeline(SoftTripleEmbedding(random_state=0), KNeighborsClassifier(5))
    assert cross_val_score(learned, X, y, cv=5).mean() > 0.95


@pytest.mark.usefixtures("unchecked")
def test_in_a_pipeline_and_a_grid() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    pipeline = make_pipeline(StandardScaler(), SoftTripleEmbedding(8, random_state=0))
    assert cross_val_score(pipeline, X, names, cv=3).mean() > 0.9
    grid = GridSearchCV(pipeline, {"softtripleembedding__centers_per_class": [1, 3]}, cv=2).fit(X, names)
    assert grid.best_score_ > 0.9
    assert set(grid.predict(X)) == set(names)
    ending_in_neighbors = make_pipeline(
        StandardScaler(), SoftTripleEmbedding(8, random_state=0), KNeighborsClassifier(3)
    )
    assert cross_val_score(ending_in_neighbors, X, names, cv=3).mean() > 0.9


@pytest.mark.usefixtures("unchecked")
def test_classes_of_several_modes() -> None:
    """Four blobs, opposite ones of one class: no single direction is near both, so that one centre must fail."""
    random = np.random.default_rng(0)
    corners = 3 * np.array([[1, 0, 1], [0, 1, 1], [-1, 0, 1], [0, -1, 1]])
    mode = random.integers(0, 4, 400)
    X, y = corners[mode] + 0.5 * random.standard_normal((400, 3)), mode % 2
    scores = [
        SoftTripleEmbedding(3, centers_per_class=k, epochs=20, random_state=0).fit(X, y).score(X, y) for k in (1, 4)
    ]
    assert scores[1] > 0.95
    assert scores[0] < 0.8


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"n_components": 0}, "'n_components' .* SoftTripleEmbedding must be an int .* Got 0"),
        ({"n_components": 2.5}, "'n_components' .* an int .* Got 2.5"),
        ({"gamma": 0.0}, "gamma = 0.0 must be a finite number above 0"),
        ({"batch_size": 0}, "'batch_size' .* an int .* Got 0"),
        ({"epochs": 0}, "'epochs' .* an int .* Got 0"),
        ({"learning_rate": -1.0}, "'learning_rate' .* a float .* Got -1.0"),
        ({"center_learning_rate": np.nan}, "'center_learning_rate' .* a float .* Got nan"),
        ({"false_reject": 1.0}, "'false_reject' .* a float .* Got 1.0"),
        ({"hidden_layer_sizes": (0,)}, r"'hidden_layer_sizes' .* ints .* Got \(0,\)"),
        ({"hidden_layer_sizes": 16}, r"'hidden_layer_sizes' .* such as \(16,\)\. Got 16"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_parameters_that_cannot_be(parameter: dict[str, object], message: str) -> None:
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=message):
        SoftTripleEmbedding(**parameter).fit(X, y)
