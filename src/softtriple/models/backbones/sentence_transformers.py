"""Any model of sentence-transformers or transformers, as a backbone of one stage on texts, when that is installed."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from softtriple.models.backbones.stages import Chain


def sentence_model(name: str) -> Chain:
    """The model ``name``: a folder, or a name on the Hugging Face hub. Plain transformers are averaged over tokens.

    Its weights are needed whenever the encoder is built, also to load a finished run: they bring the tokeniser.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError(
            f"st:{name} needs the sentence-transformers library: pip install 'softtriple[text]'"
        ) from error
    try:
        with torch.device("cpu"):  # where weights are only checked for shape, the surrounding device is "meta"
            model = SentenceTransformer(name, device="cpu")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"st:{name}: no such folder, and no model that can be loaded by this name ({error})"
        ) from error
    preprocess = SentenceTokens(model=name, max_length=model.max_seq_length, tokenizer=model.tokenizer)
    network = _SentenceEmbedding(model)
    with torch.no_grad(), torch.device("cpu"):
        width = network(preprocess(["a"])).shape[1]
    return Chain({"network": network}, num_features=width, taps=(1, 1, 1), preprocess=preprocess)


@dataclass(frozen=True, kw_only=True)
class SentenceTokens:
    """Texts to the tokens that ``model`` knows, and a second row that tells them (1) from what fills the row up (0)."""

    model: str
    max_length: int | None
    tokenizer: Any = field(compare=False, repr=False)  # part of the model, so no part of its description

    def __call__(self, texts: list[str]) -> Int64[Tensor, "texts 2 length"]:
        """The tokens of each text, at most ``max_length``."""
        found = self.tokenizer(
            texts, padding=True, truncation=self.max_length is not None, max_length=self.max_length, return_tensors="pt"
        )
        return torch.stack([found["input_ids"], found["attention_mask"]], dim=1)


class _SentenceEmbedding(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Int64[Tensor, "texts 2 length"]) -> Float[Tensor, "texts width"]:
        found = self.model({"input_ids": tokens[:, 0], "attention_mask": tokens[:, 1]})
        embedding: Tensor = found["sentence_embedding"]
        return embedding
