"""Losses with centres, called as the Trainer of sentence-transformers calls losses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.interop.sentence_transformers import CENTER_RATE, SentenceLoss
from softtriple.losses import SoftTripleLoss


class Model(nn.Module):
    """What a sentence-transformers model is to a loss: features in, features with an embedding out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Any]:
        return {**features, "sentence_embedding": self.layer(features["input_ids"].float())}


def test_it_is_the_loss_of_the_embeddings() -> None:
    model, loss = Model(), SoftTripleLoss(5, 4, 2)
    batch, labels = {"input_ids": torch.randint(9, (6, 3))}, torch.arange(6) % 5
    value = SentenceLoss(model, loss)([batch], labels[:, None])  # some collators add a dimension
    torch.testing.assert_close(value, loss(model.layer(batch["input_ids"].float()), labels))
    value.backward()
    assert model.layer.weight.grad is not None
    assert loss.centers.grad is not None


def test_the_rate_of_the_centres_is_for_them_alone() -> None:
    import re

    (pattern,) = CENTER_RATE
    names = [name for name, _ in SentenceLoss(Model(), SoftTripleLoss(5, 4, 2)).named_parameters()]
    assert [name for name in names if re.search(pattern, name)] == ["loss.centers"]


def test_pairs_of_texts_are_refused() -> None:
    batch = {"input_ids": torch.zeros(2, 3)}
    with pytest.raises(UserError, match="2 columns of texts"):
        SentenceLoss(Model(), SoftTripleLoss(5, 4, 2))([batch, batch], torch.tensor([0, 1]))


def test_the_model_card_gets_settings_and_citation() -> None:
    loss = SentenceLoss(Model(), SoftTripleLoss(5, 4, 2, gamma=0.3))
    assert "gamma=0.3" in loss.get_config_dict()["loss"]
    assert "SoftTriple" in loss.citation
