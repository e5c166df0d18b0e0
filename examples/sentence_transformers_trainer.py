"""SoftTriple in the Trainer of sentence-transformers, on a table of texts and labels.

python examples/sentence_transformers_trainer.py texts.csv [MODEL] [EPOCHS]    needs 'sentence-transformers[train]'

Half of the classes are not trained on; the metrics are for those.
"""

import sys

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)

from softtriple import SoftTripleLoss, evaluate
from softtriple.data import contiguous_labels, load_benchmark
from softtriple.interop.sentence_transformers import CENTER_RATE, SentenceLoss

table, name, epochs = (*sys.argv[1:4], *("texts.csv", "all-MiniLM-L6-v2", "3")[len(sys.argv) - 1 :])
benchmark = load_benchmark(table)
labels, classes = contiguous_labels(benchmark.train.labels)  # numbered from 0 without gaps
texts = Dataset.from_dict({"text": list(benchmark.train.items.values), "label": labels.tolist()})

model = SentenceTransformer(name)
loss = SentenceLoss(model, SoftTripleLoss(len(classes), model.get_embedding_dimension(), centers_per_class=4))


def recall() -> float:
    """Recall@1 on the classes that are not trained on."""
    vectors = model.encode(list(benchmark.test.items.values), show_progress_bar=False)
    return evaluate(vectors, benchmark.test.labels, kmeans_restarts=0).recall[1]


before = recall()
arguments = SentenceTransformerTrainingArguments(
    output_dir="trained",
    num_train_epochs=float(epochs),
    per_device_train_batch_size=32,
    learning_rate=2e-5,
    learning_rate_mapping=CENTER_RATE,  # the centres learn faster than the encoder
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    seed=0,
)
SentenceTransformerTrainer(model, arguments, train_dataset=texts, loss=loss).train()
print(f"unseen classes: R@1 {before:.3f} before, {recall():.3f} after")
print(f"distinct centres of 4, by class: {loss.loss.distinct_centers().tolist()}")
model.save_pretrained("trained")
