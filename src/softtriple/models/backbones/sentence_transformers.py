"""Text models of sentence-transformers and transformers as a one-stage backbone: a transformer and pooling.

No code in a model's folder is imported or run: the transformer is a class of the installed library, chosen by
``model_type``, and the modules that ``modules.json`` lists after it (pooling, dense layers, normalisation) are built
here. Weights are read from safetensors only. Prompts are not prepended.
"""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models.backbones import libraries
from softtriple.models.backbones.libraries import CONFIG
from softtriple.models.backbones.stages import Chain
from softtriple.models.weights import load_exactly, read_tensors

TOKENIZER = "tokenizer.json"
SENTENCE = "sentence.json"

# Supported text encoders of transformers. Others are not allowed, because some load further models by name.
MODEL_TYPES = (
    "albert",
    "bert",
    "camembert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "eurobert",
    "gemma3_text",
    "llama",
    "mistral",
    "modernbert",
    "mpnet",
    "nomic_bert",
    "qwen2",
    "qwen3",
    "roberta",
    "xlm-roberta",
)
POOLINGS = ("cls", "lasttoken", "max", "mean")
_ACTIVATIONS: dict[str, type[nn.Module]] = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU}


class Dense(BaseModel, extra="forbid", frozen=True):
    """One linear layer after pooling."""

    in_features: int
    out_features: int
    bias: bool
    activation: str


class Sentence(BaseModel, extra="forbid", frozen=True):
    """The content of sentence.json: what follows the transformer."""

    pooling: str = "mean"
    dense: tuple[Dense, ...] = ()
    normalize: bool = False


def sentence_model(name: str, *, pretrained: bool = True) -> Chain:
    """The model st:FOLDER or, on the Hugging Face hub, st:NAME. Plain transformers get mean pooling."""
    folder = libraries.model_folder(name)
    modules = _modules(folder)
    inner = folder / modules[0][1] if modules else folder
    config = libraries.clean_config(libraries.read_config(inner, name), name)
    sentence = _sentence(folder, modules[1:], name)
    with torch.device("cpu"):  # Encoder.load builds networks on the meta device
        network = _sentence_network(config, sentence, _read_tokenizer(inner, config, name), name)
        embedding = network.get_submodule("network")
        assert isinstance(embedding, SentenceEmbedding)
        if pretrained:
            embedding.model = libraries.load_pretrained(embedding.model, inner, name)
            dense = [path for kind, path in modules if kind == "Dense"]
            for layer, path in zip(embedding.dense, dense, strict=True):
                file = folder / path / "model.safetensors"
                weights = {key.removeprefix("linear."): value for key, value in read_tensors(file).items()}
                load_exactly(layer[0], weights, str(file))  # type: ignore[index]
    return network


def restore_sentence(files: Mapping[str, str], name: str) -> Chain:
    """The network of a saved encoder, without weights, from its ``files``."""
    if missing := {CONFIG, TOKENIZER, SENTENCE} - files.keys():
        raise UserError(f"{name}: {', '.join(sorted(missing))} of the encoder are missing")
    try:
        sentence = Sentence.model_validate_json(files[SENTENCE])
    except ValidationError as error:
        raise UserError(f"{SENTENCE}: {error.errors()[0]['msg']}") from None
    config = libraries.clean_config(libraries.parse_json(files[CONFIG], CONFIG), name)
    return _sentence_network(config, sentence, files[TOKENIZER], name)


@dataclass(frozen=True, kw_only=True)
class SentenceTokens:
    """Texts to token ids and attention mask, truncated and padded by the tokenizer."""

    max_length: int | None
    tokenizer: Any = field(compare=False, repr=False)  # saved as a file of its own

    def __call__(self, texts: list[str]) -> Int64[Tensor, "texts 2 length"]:
        """Token ids and attention mask of each text, truncated to ``max_length``."""
        encodings = self.tokenizer.encode_batch(texts)
        ids = torch.tensor([encoding.ids for encoding in encodings], device="cpu")
        mask = torch.tensor([encoding.attention_mask for encoding in encodings], device="cpu")
        return torch.stack([ids, mask], dim=1)


class SentenceEmbedding(nn.Module):
    """A transformer, pooling, dense layers and normalisation."""

    def __init__(self, model: nn.Module, sentence: Sentence) -> None:
        super().__init__()
        self.model = model
        self.pooling, self.normalize = sentence.pooling, sentence.normalize
        self.dense = nn.ModuleList(
            nn.Sequential(nn.Linear(d.in_features, d.out_features, bias=d.bias), _ACTIVATIONS[d.activation]())
            for d in sentence.dense
        )

    def forward(self, tokens: Int64[Tensor, "texts 2 length"]) -> Float[Tensor, "texts width"]:
        """The embedding of each text."""
        ids, mask = tokens.unbind(dim=1)
        x = pool_tokens(self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, self.pooling)
        for layer in self.dense:
            x = layer(x)
        return F.normalize(x, dim=-1) if self.normalize else x


def pool_tokens(
    x: Float[Tensor, "texts length width"], mask: Int64[Tensor, "texts length"], pooling: str
) -> Float[Tensor, "texts width"]:
    """The first token, the last token, the maximum or the mean of the tokens in ``mask``."""
    known = mask.unsqueeze(-1).to(x.dtype)
    if pooling == "mean":
        return (x * known).sum(dim=1) / known.sum(dim=1).clamp(min=1e-9)
    if pooling == "max":
        return x.masked_fill(known == 0, -torch.inf).amax(dim=1)
    places = torch.arange(mask.shape[1], device=mask.device)
    place = (places * mask).argmax(dim=1) if pooling == "lasttoken" else mask.argmax(dim=1)
    return x[torch.arange(len(x), device=x.device), place]


def _sentence_network(config: Mapping[str, Any], sentence: Sentence, tokenizer: str, name: str) -> Chain:
    libraries.check_model_type(config, MODEL_TYPES, "text encoder", name)
    if sentence.pooling not in POOLINGS or any(d.activation not in _ACTIVATIONS for d in sentence.dense):
        raise UserError(f"{name}: pooling must be {', '.join(POOLINGS)}, activations {', '.join(_ACTIVATIONS)}")
    try:
        backend = importlib.import_module("tokenizers").Tokenizer.from_str(tokenizer)
    except Exception as error:  # the Rust library raises Exception itself
        raise UserError(f"{name}: {TOKENIZER} cannot be read ({error})") from error
    model = libraries.build_model(libraries.import_library("transformers", name).AutoModel.from_config, config, name)
    width = sentence.dense[-1].out_features if sentence.dense else model.config.hidden_size
    files = {
        CONFIG: libraries.config_text(config),
        TOKENIZER: tokenizer,
        SENTENCE: sentence.model_dump_json(indent=2) + "\n",
    }
    preprocess = SentenceTokens(max_length=(backend.truncation or {}).get("max_length"), tokenizer=backend)
    return Chain(
        {"network": SentenceEmbedding(model, sentence)}, num_features=width, preprocess=preprocess, files=files
    )


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Class name and subfolder of each module in modules.json, in order; none for plain transformers."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        return [(str(row["type"]).rpartition(".")[2], str(row["path"])) for row in json.loads(path.read_text("utf-8"))]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: not a list of modules ({error!r})") from error


def _sentence(folder: Path, modules: list[tuple[str, str]], name: str) -> Sentence:
    pooling, dense, normalize = "mean", [], False
    for kind, path in modules:
        settings = libraries.read_json(folder / path / CONFIG) or {}
        if kind == "Pooling":
            pooling = _pooling(settings)
        elif kind == "Dense":
            activation = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
            sizes = {key: settings[key] for key in ("in_features", "out_features")}
            dense.append(Dense(**sizes, bias=settings.get("bias", True), activation=activation))
        elif kind == "Normalize":
            normalize = True
        else:
            raise UserError(
                f"{name}: modules.json lists {kind}; supported are Transformer, Pooling, Dense and Normalize"
            )
    return Sentence(pooling=pooling, dense=tuple(dense), normalize=normalize)


def _pooling(settings: Mapping[str, Any]) -> str:
    """The mode of a Pooling module: a name in newer versions, one flag per mode in older ones."""
    if "pooling_mode" in settings:
        return str(settings["pooling_mode"])
    old = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "lasttoken"}
    chosen = [
        key.removeprefix("pooling_mode_") for key, on in settings.items() if key.startswith("pooling_mode_") and on
    ]
    return old.get(chosen[0], chosen[0]) if len(chosen) == 1 else "+".join(chosen)


def _read_tokenizer(folder: Path, config: Mapping[str, Any], name: str) -> str:
    """The tokenizer in ``folder`` as JSON, with truncation to the model's length and padding."""
    transformers = libraries.import_library("transformers", name)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: no tokenizer that can be loaded from {folder} ({error})") from error
    if not tokenizer.is_fast:
        raise UserError(f"{name}: its tokenizer has no {TOKENIZER}")
    settings = next((libraries.read_json(path) or {} for path in sorted(folder.glob("sentence_*_config.json"))), {})
    lengths = (settings.get("max_seq_length"), tokenizer.model_max_length, config.get("max_position_embeddings"))
    length = min(length for length in lengths if isinstance(length, int) and length > 0)
    backend = tokenizer.backend_tokenizer
    if settings.get("do_lower_case"):
        normalizers = importlib.import_module("tokenizers.normalizers")
        rest = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    backend.enable_truncation(length)
    backend.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id or 0,
        pad_token=tokenizer.pad_token or "[PAD]",
    )
    text: str = backend.to_str()
    return text
