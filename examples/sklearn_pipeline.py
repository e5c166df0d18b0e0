"""SoftTriple as a step of a scikit-learn pipeline, between a scaler and a nearest-neighbour classifier.

python examples/sklearn_pipeline.py
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from softtriple import SoftTripleEmbedding

pixels, digits = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(pixels, digits, test_size=0.5, random_state=0, stratify=digits)

plain = make_pipeline(StandardScaler(), KNeighborsClassifier(5)).fit(train_x, train_y)
print(f"k-NN on pixels:                  {plain.score(test_x, test_y):.3f} in {train_x.shape[1]} dimensions")

learned = make_pipeline(
    StandardScaler(), SoftTripleEmbedding(16, epochs=10, random_state=0), KNeighborsClassifier(5)
).fit(train_x, train_y)
print(f"k-NN on the embedding:           {learned.score(test_x, test_y):.3f} in 16 dimensions")

# Its parameters can be tuned like any other estimator's.
search = GridSearchCV(learned, {"softtripleembedding__centers_per_class": [1, 4]}, cv=2).fit(train_x, train_y)
print(f"centres per class, by grid search: {search.best_params_['softtripleembedding__centers_per_class']}")

# It is also a classifier by itself, by its learned centres.
own = make_pipeline(StandardScaler(), SoftTripleEmbedding(16, epochs=10, random_state=0)).fit(train_x, train_y)
print(f"nearest class by its centres:    {own.score(test_x, test_y):.3f}")
