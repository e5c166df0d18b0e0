"""The encoder: backbone, pooling, optional layer norm, linear head, unit length."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Num
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from softtriple.data.benchmark import Kind
from softtriple.errors import UserError
from softtriple.models.backbones import build_backbone, restore_backbone
from softtriple.models.backbones.module import MODULE, module_backbone, module_name
from softtriple.models.backbones.stages import StagedNetwork
from softtriple.models.description import EncoderConfig, Pooling
from softtriple.models.folding import Pairs, fast_view, find_pairs
from softtriple.models.inputs import Batch, Images, Texts, Vectors, example_input, input_batches
from softtriple.models.lora import add_low_rank, freeze_all_but_low_rank, merge_low_rank
from softtriple.models.preprocess import Preprocess, TextPreprocess
from softtriple.models.repository import snapshot
from softtriple.models.saving import fingerprint, load_encoder, open_encoder, separate_tensors, write_encoder
from softtriple.models.trainable import count_frozen

FEWEST_FOLDED = 16  # smaller batches do not gain from folded batch norms
FrozenBatchNorm = Literal["off", "statistics", "statistics+affine"]
# To download from a repository: the folder of an encoder, or the same files beside the model card.
ENCODER_FILES = ("encoder/*", "*.json", "*.txt", "model.safetensors")


def pool(x: Float[Tensor, "batch ..."], pooling: Pooling) -> Float[Tensor, "batch features"]:
    """The mean of a feature map or of tokens, or mean plus maximum; feature vectors are returned unchanged."""
    if x.ndim == 2:
        return x
    places = 1 if x.ndim == 3 else (2, 3)
    average = x.mean(dim=places)
    return average + x.amax(dim=places) if pooling == "average+max" else average


class Encoder(nn.Module):
    """Images, vectors or texts to unit vectors: backbone, pooling, optional layer norm, linear head.

    ``preprocess`` turns images or texts into network input; it is ``None`` for vectors. ``class_names`` are the names
    of the training classes. ``backbone`` and ``head`` replace the ones that ``config`` describes.

    Example:
        >>> encoder = Encoder.from_backbone("linear", dim=2, in_features=3)
        >>> encoder.embed([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).shape
        (2, 2)
    """

    def __init__(
        self,
        config: EncoderConfig,
        class_names: Sequence[str] = (),
        *,
        backbone: StagedNetwork | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.class_names = tuple(class_names)
        if backbone is None:
            backbone = build_backbone(
                config.backbone, pretrained=config.pretrained, weights=config.weights, **config.backbone_options
            )
        self.backbone = backbone
        # On a CPU, convolutions are 1.2 to 1.7 times as fast in this memory format, whatever format the input has.
        self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocess = self.backbone.preprocess
        if self.takes != "image" and config.pooling != "average":
            raise UserError(
                f"{config.backbone} takes {self.takes}s: there is no feature map for {config.pooling} pooling"
            )
        if self.backbone.pooled and config.pooling != "average":
            raise UserError(f"{config.backbone} has its own pooling: leave out pooling = {config.pooling!r}")
        if head is None and config.dim is not None:
            head = nn.Linear(self.backbone.num_features, config.dim)
        self.head = head
        norm = nn.LayerNorm(self.backbone.num_features, elementwise_affine=False)
        self.layer_norm = norm if config.layer_norm else None
        self._frozen_stages = 0
        self._low_rank = False
        self._frozen_batch_norm: FrozenBatchNorm = "off"
        self._pairs: Pairs | None = None
        if config.eval_size is not None:
            self._set_eval_size(config.eval_size)

    @classmethod
    def from_backbone(cls, name: str, dim: int | None = 64, **options: Any) -> "Encoder":
        """An encoder with the backbone called ``name``; ``options`` are fields of `EncoderConfig`."""
        return cls(EncoderConfig(backbone=name, dim=dim, **options))

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        *,
        dim: int | None = 64,
        preprocess: Preprocess | TextPreprocess | None = None,
        in_features: int | None = None,
        pooling: Pooling = "average",
        layer_norm: bool = False,
        class_names: Sequence[str] = (),
    ) -> "Encoder":
        """An encoder on any module that maps images, vectors or token ids to features.

        Feature maps are pooled, ``(batch, tokens, features)`` is averaged over tokens, ``(batch, features)`` is used
        directly. Pass ``in_features`` for vectors; a ``preprocess`` that maps a list of strings to the module's input
        for texts; and a `Preprocess` for images, by default ``module.preprocess``, or else 224 pixels with ImageNet's
        mean and standard deviation.

        Example:
            >>> encoder = Encoder.from_module(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), in_features=3, dim=2)
            >>> encoder.takes, encoder.embed([[1.0, 2.0, 3.0]]).shape
            ('vector', (1, 2))
        """
        config = EncoderConfig(
            backbone=module_name(module),
            dim=dim,
            pooling=pooling,
            layer_norm=layer_norm,
            pretrained=False,
            in_features=in_features,
        )
        return cls(config, class_names, backbone=module_backbone(module, preprocess, in_features))

    @property
    def dim(self) -> int:
        """Length of the embeddings."""
        return self.config.dim or self.backbone.num_features

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    @property
    def num_stages(self) -> int:
        """Number of stages of the backbone."""
        return len(self.backbone.stage_names)

    @property
    def takes(self) -> Kind:
        """The kind of items it embeds: "image", "vector" or "text"."""
        if self.preprocess is None:
            return "vector"
        return "image" if isinstance(self.preprocess, Preprocess) else "text"

    # From items to embeddings, and the steps in between.

    @torch.no_grad()
    def embed(self, items: Images | Vectors | Texts, batch_size: int = 64) -> Float32[np.ndarray, "items dim"]:
        """Embeddings of images, vectors or texts, whichever the encoder takes; one row per item.

        Images are paths, Pillow images or 8-bit arrays of height×width×3, of any size, which are resized and cropped
        as in evaluation. Vectors are an array, a tensor or a list of rows; texts are strings. A single item gives one
        row. Runs on the encoder's device, in evaluation mode.
        """
        if batch_size < 1:
            raise UserError(f"batch_size = {batch_size} must be at least 1")
        device, was_training = self.device, self.training
        if any(module.training for module in self.modules()):  # switching takes milliseconds, as long as some networks
            self.eval()
        try:
            batches = input_batches(items, self.preprocess, self.config.in_features, batch_size)
            network, embeddings = self, []
            for batch in batches:
                if len(batch) >= FEWEST_FOLDED and network is self:
                    network = self.fast()
                embeddings.append(network(self.prepare(batch).to(device)).float().cpu().numpy())
        finally:
            if was_training:
                self.train()
        return np.concatenate([np.empty((0, self.dim), dtype=np.float32), *embeddings])

    def prepare(self, batch: Batch) -> Num[Tensor, "batch ..."]:
        """Network input for a batch of 8-bit RGB images or texts; vectors are returned unchanged."""
        return batch if self.preprocess is None else self.preprocess(batch)  # type: ignore[arg-type, return-value]

    def example(self, count: int = 1) -> Num[Tensor, "count ..."]:
        """Network input for ``count`` blank items, to learn its shape."""
        return example_input(self.preprocess, self.config.in_features, count)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Embeddings of network input, as made by `prepare`."""
        return self.run_from(inputs, 0)

    def run_from(self, x: Num[Tensor, "batch ..."], first: int) -> Float[Tensor, "batch dim"]:
        """Embeddings from the output of the first ``first`` stages: the rest of `forward`."""
        return self.project(self.features(x, first))

    def features(self, x: Num[Tensor, "batch ..."], first: int = 0) -> Float[Tensor, "batch features"]:
        """Pooled features, before layer norm and head, from network input or the output of the first stages."""
        return pool(self.backbone.run(x, first), self.config.pooling)

    def head_input(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        """The input of the head: pooled features after the layer norm, if there is one."""
        return features if self.layer_norm is None else self.layer_norm(features)

    def project(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """Embeddings of pooled features."""
        features = self.head_input(features)
        return F.normalize(features if self.head is None else self.head(features), dim=-1)

    def truncated(self, dim: int) -> "Encoder":
        """An encoder for the first ``dim`` dimensions of the embeddings, normalised again, on the same backbone.

        Example:
            >>> encoder = Encoder.from_backbone("linear", dim=4, in_features=3)
            >>> encoder.truncated(2).embed([[1.0, 2.0, 3.0]]).shape
            (1, 2)
        """
        if not 1 <= dim <= self.dim:
            raise UserError(f"dim = {dim} must be from 1 to {self.dim}, the width of the embeddings")
        if not isinstance(self.head, nn.Linear):
            raise UserError("this encoder has no linear head to truncate")
        head = nn.Linear(self.head.in_features, dim, device=self.device, dtype=self.head.weight.dtype)
        shorter = Encoder(replace(self.config, dim=dim), self.class_names, backbone=self.backbone, head=head)
        shorter.set_head(self.head.weight[:dim], self.head.bias[:dim])
        shorter.preprocess = self.preprocess
        return shorter.eval()

    def fast(self) -> "Encoder":
        """A view of this encoder that computes the same faster (`softtriple.models.folding`); not for saving.

        It shares all parameters and buffers, so it can be trained and is never out of date. Encoders for texts or
        vectors, or with the user's own module, are returned unchanged.
        """
        if self.takes != "image" or not self.backbone.cacheable:
            return self
        if self._pairs is None:
            was_training = self.training
            self.eval()
            self._pairs = find_pairs(self, self.example().to(self.device))
            self.train(was_training)
        return fast_view(self, self._pairs)

    # Freezing and initialisation.

    def set_trainable(self, part: str) -> int:
        """Train ``"head"``, ``"last:N"`` (the head and the last N stages), ``"all"`` or ``"lora"``; freeze the rest.

        ``"lora"`` trains the head and low-rank updates of a transformer's attention projections. Frozen stages stay in
        evaluation mode, so that their output can be cached. Returns their number.
        """
        if part == "head" and self.head is None:
            raise UserError("trainable = 'head': this encoder has no head (dim = none)")
        self._frozen_stages = count_frozen(part, self.num_stages, self.config.backbone)
        merge_low_rank(self.backbone)
        if part == "lora":
            add_low_rank(self.backbone, self.config.backbone)
        self._low_rank = part == "lora"
        self._apply_frozen()
        return self._frozen_stages

    def freeze_batch_norm(self, mode: FrozenBatchNorm) -> None:
        """Freeze the running statistics of batch norm, or also its scale and shift, or nothing ("off").

        With ``"statistics"`` every batch norm also uses its running mean and variance in training and does not update
        them, while scale and shift are still trained. This is usual in fine-tuning with batches too small to estimate
        statistics; the SoftTriple authors' code does it. ``"statistics+affine"`` also freezes scale and shift. Later
        calls of ``train()`` respect the setting.
        """
        if mode not in get_args(FrozenBatchNorm):
            raise UserError(f"batch norm: {mode!r} must be one of {', '.join(get_args(FrozenBatchNorm))}")
        self._frozen_batch_norm = mode
        self._apply_frozen()

    def train(self, mode: bool = True) -> "Encoder":
        """Set training mode, except for what is frozen."""
        super().train(mode)
        frozen = self.backbone.first_modules(self._frozen_stages)
        for module in frozen if self._frozen_batch_norm == "off" else [*frozen, *self._batch_norms()]:
            module.eval()
        return self

    def set_head(self, weight: Float[Tensor, "dim features"], bias: Float[Tensor, " dim"]) -> None:
        """Copy ``weight`` and ``bias`` into the linear head."""
        if not isinstance(self.head, nn.Linear):
            raise UserError("this encoder has no linear head to initialise")
        with torch.no_grad():
            self.head.weight.copy_(weight)
            self.head.bias.copy_(bias)

    @torch.no_grad()
    def _set_eval_size(self, size: int) -> None:
        """Evaluate at ``size`` pixels; UserError if the backbone does not support that size."""
        if not isinstance(self.preprocess, Preprocess):
            raise UserError(f"eval_size = {size}: {self.config.backbone} does not take images")
        self.preprocess = replace(self.preprocess, eval_size=size)
        try:
            with self.device:
                self.eval().features(self.example())
        except (AssertionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"{self.config.backbone} does not take images of eval_size = {size} pixels ({error})"
            ) from error
        self.train()

    def _apply_frozen(self) -> None:
        self.requires_grad_(True)
        if self._low_rank:
            freeze_all_but_low_rank(self.backbone)
        for module in self.backbone.first_modules(self._frozen_stages):
            module.requires_grad_(False)
        if self._frozen_batch_norm == "statistics+affine":
            for norm in self._batch_norms():
                norm.requires_grad_(False)
        self.train(self.training)

    def _batch_norms(self) -> list[nn.Module]:
        return [module for module in self.modules() if isinstance(module, _BatchNorm)]

    # Files.

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything inference needs to ``folder``: model.safetensors, encoder.json and the backbone's files.

        Each file is written atomically.
        """
        write_encoder(
            Path(folder),
            separate_tensors(self),
            self.config,
            self.preprocess,
            self.class_names,
            self.backbone.files,
        )

    def fingerprint(self) -> str:
        """A hash of weights, configuration and preprocessing; saving and loading do not change it."""
        return fingerprint(separate_tensors(self), self.config, self.preprocess)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        backbone: nn.Module | None = None,
        preprocess: TextPreprocess | None = None,
        head: nn.Module | None = None,
        trust: bool = False,
    ) -> "Encoder":
        """Load the encoder in ``folder``, or in the run directory ``folder``, in evaluation mode.

        An encoder made by `from_module` needs ``backbone``, a module of the same architecture, which gets the saved
        weights; for texts it also needs the ``preprocess``, unless the module has that attribute.

        Opens no file outside ``folder``, executes nothing and does not use the network. ``trust=True`` lifts this for
        encoders on ``st:NAME`` saved by earlier versions, which have to read the model NAME; use it only for your own.
        """
        saved = open_encoder(folder)
        config, saved_preprocess = saved.description.config, saved.description.preprocess
        if config.backbone.startswith(f"{MODULE}:") != (backbone is not None):
            what = config.backbone.removeprefix(f"{MODULE}:")
            how = "pass" if backbone is None else "leave out"
            raise UserError(
                f"{saved.folder}: the backbone of this encoder is {what}; {how} Encoder.load(..., backbone=module)"
            )
        staged = None
        if backbone is not None:
            staged = module_backbone(backbone, saved_preprocess or preprocess, config.in_features)

        def build() -> Encoder:
            network = staged or restore_backbone(
                config.backbone, saved.files, saved_preprocess, trust=trust, **config.backbone_options
            )
            return cls(config, saved.description.class_names, backbone=network, head=head)

        encoder = load_encoder(saved, build)
        if saved_preprocess is not None:
            # As in training, even if this version's default differs.
            encoder.preprocess = saved_preprocess
        return encoder.eval()

    @classmethod
    def from_pretrained(cls, name: str, *, revision: str | None = None, **options: Any) -> "Encoder":
        """Load the encoder in the folder ``name``, or in the repository USER/NAME on the Hugging Face hub.

        ``revision`` is a branch, a tag or a commit of the repository; ``options`` are passed to `load`. No file from
        the hub is executed.
        """
        if Path(name).is_dir():
            if revision is not None:
                raise UserError(f"{name} is a folder, which has no revision = {revision!r}")
            return cls.load(name, **options)
        return cls.load(snapshot(name, ENCODER_FILES, revision), **options)
