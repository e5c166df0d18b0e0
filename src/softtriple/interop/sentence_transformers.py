"""Losses with centres for the Trainer of sentence-transformers, which has no such losses.

model = SentenceTransformer("all-MiniLM-L6-v2")
loss = SentenceLoss(model, SoftTripleLoss(num_classes, model.get_embedding_dimension(), centers_per_class=4))
arguments = SentenceTransformerTrainingArguments(..., learning_rate_mapping=CENTER_RATE)
SentenceTransformerTrainer(model, arguments, train_dataset=texts_with_labels, loss=loss).train()
"""

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.losses import Loss

# For the training arguments: at the learning rate of the encoder, which is the Trainer's default, centres hardly move.
CENTER_RATE = {r"^loss\.": 1e-2}


class SentenceLoss(nn.Module):
    """``loss`` on the embeddings of ``model``, with the interface that the Trainer expects.

    The data set has one column of texts and a column ``label`` of class numbers from 0. Plain shuffled batches will do.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(
        self, sentence_features: Iterable[dict[str, Any]], labels: Int[Tensor, "batch ..."]
    ) -> Float[Tensor, ""]:
        """Mean loss of a batch of tokenized texts."""
        columns = list(sentence_features)
        if len(columns) != 1:
            raise UserError(
                f"the data set has {len(columns)} columns of texts; {type(self.loss).__name__} compares texts with "
                "centres, so it takes one column and their labels"
            )
        value: Tensor = self.loss(self.model(columns[0])["sentence_embedding"], labels.view(-1))
        return value

    def get_config_dict(self) -> dict[str, Any]:
        """The entry of the loss in the model card."""
        return {"loss": repr(self.loss)}

    @property
    def citation(self) -> str:
        """The paper of SoftTriple, for the model card."""
        return """
@inproceedings{qian2019softtriple,
    title = "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling",
    author = "Qian, Qi and Shang, Lei and Sun, Baigui and Hu, Juhua and Li, Hao and Jin, Rong",
    booktitle = "Proceedings of the IEEE/CVF International Conference on Computer Vision",
    year = "2019",
}
"""
