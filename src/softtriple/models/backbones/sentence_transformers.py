"""Any model of sentence-transformers or transformers as a one-stage backbone on texts."""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models.backbones.stages import Chain


def sentence_model(name: str) -> Chain:
    """The model ``name``: a folder, or a name on the Hugging Face hub. Plain transformers get mean pooling.

    The model is read whenever the encoder is built, even to load a finished run, because the tokenizer belongs to it.
    """
    from sentence_transformers import SentenceTransformer

    try:
        with torch.device("cpu"):  # Encoder.load builds networks on the meta device
            model = SentenceTransformer(name, device="cpu")
    except (OSError, ValueError) as error:
        raise UserError(f"st:{name}: neither a folder nor a model that can be loaded ({error})") from error
    preprocess = SentenceTokens(model=name, max_length=model.max_seq_length, tokenizer=model.tokenizer)
    network = _SentenceEmbedding(model)
    with torch.no_grad(), torch.device("cpu"):
        width = network(preprocess(["a"])).shape[1]
    return Chain({"network": network}, num_features=width, preprocess=preprocess)


@dataclass(frozen=True, kw_only=True)
class SentenceTokens:
    """Texts to the token ids of ``model``, and their attention mask as a second row."""

    model: str
    max_length: int | None
    tokenizer: Any = field(compare=False, repr=False)  # belongs to the model, not to its description

    def __call__(self, texts: list[str]) -> Int64[Tensor, "texts 2 length"]:
        """Token ids and attention mask of each text, truncated to ``max_length``."""
        tokens = self.tokenizer(
            texts, padding=True, truncation=self.max_length is not None, max_length=self.max_length, return_tensors="pt"
        )
        return torch.stack([tokens["input_ids"], tokens["attention_mask"]], dim=1)


class _SentenceEmbedding(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Int64[Tensor, "texts 2 length"]) -> Float[Tensor, "texts width"]:
        embedding: Tensor = self.model({"input_ids": tokens[:, 0], "attention_mask": tokens[:, 1]})[
            "sentence_embedding"
        ]
        return embedding
