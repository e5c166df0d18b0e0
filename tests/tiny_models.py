"""Tiny models of transformers with random weights, saved to folders as published ones are."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

SIZE = 32
_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": SIZE,
    "patch_size": 8,
}
_CONVNEXT = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 2, 1], "image_size": SIZE}
_SWIN = {
    "image_size": SIZE,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 2],
    "num_heads": [2, 2],
    "window_size": 4,
}
_TEXT_TOWER = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
_TWO_TOWERS = {
    "vision_config": _VIT,
    "text_config": _TEXT_TOWER | {"vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
# Class, class of its configuration, and what that takes.
VISION: dict[str, tuple[str, str, dict[str, Any]]] = {
    "clip": ("CLIPModel", "CLIPConfig", _TWO_TOWERS),
    "clip_vision_model": ("CLIPVisionModel", "CLIPVisionConfig", _VIT),
    "convnext": ("ConvNextModel", "ConvNextConfig", _CONVNEXT),
    "convnextv2": ("ConvNextV2Model", "ConvNextV2Config", _CONVNEXT),
    "dinov2": ("Dinov2Model", "Dinov2Config", _VIT),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _VIT),
    "dinov3_vit": ("DINOv3ViTModel", "DINOv3ViTConfig", _VIT | {"num_register_tokens": 2}),
    "siglip": ("SiglipModel", "SiglipConfig", _TWO_TOWERS),
    "siglip_vision_model": ("SiglipVisionModel", "SiglipVisionConfig", _VIT),
    "swin": ("SwinModel", "SwinConfig", _SWIN),
    "swinv2": ("Swinv2Model", "Swinv2Config", _SWIN),
    "vit": ("ViTModel", "ViTConfig", _VIT),
}
PROCESSOR = {
    "do_center_crop": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_processor_type": "BitImageProcessor",
    "crop_size": {"height": SIZE, "width": SIZE},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
    "rescale_factor": 1 / 255,
    "size": {"shortest_edge": 36},
}


def save_vision_model(name: str, folder: Path) -> nn.Module:
    """Save the model called ``name`` in `VISION` and its image processor's settings; returns the model."""
    model, config, options = VISION[name]
    network = _randomized(getattr(transformers, model)(getattr(transformers, config)(**options)))
    _save(network, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return network


def save_text_model(folder: Path) -> nn.Module:
    """Save a BERT of two layers that reads letters, and its tokenizer; returns the model."""
    letters = "abcdefghijklmnopqrstuvwxyz?"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    transformers.BertTokenizerFast(vocab={word: number for number, word in enumerate(words)}).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)
    network = _randomized(transformers.BertModel(config))
    _save(network, folder)
    return network


def _randomized(network: nn.Module) -> nn.Module:
    """Weights as large as trained ones: with the small ones of transformers all features look alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return network.eval()


def _save(network: Any, folder: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(folder)
