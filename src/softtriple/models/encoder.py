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
from softtriple.models.hub import snapshot
from softtriple.models.inputs import Batch, Images, Texts, Vectors, example_input, input_batches
from softtriple.models.lora import add_low_rank, freeze_all_but_low_rank, merge_low_rank
from softtriple.models.preprocess import Preprocess, TextPreprocess
from softtriple.models.saving import fingerprint, load_encoder, open_encoder, separate_tensors, write_encoder
from softtriple.models.trainable import count_frozen

FEWEST_FOLDED = 16  # items in a batch; for fewer, folding batch norms costs what it saves
FrozenBatchNorm = Literal["off", "statistics", "statistics+affine"]
# Of a repository: the folder of an encoder, or the same files beside the model card.
ENCODER_FILES = ("encoder/*", "*.json", "*.txt", "model.safetensors")


def pool(x: Float[Tensor, "batch ..."], pooling: Pooling) -> Float[Tensor, "batch features"]:
    """The mean over a feature map or over tokens, or that plus the maximum; feature vectors stay as they are."""
    if x.ndim == 2:
        return x
    places = 1 if x.ndim == 3 else (2, 3)
    average = x.mean(dim=places)
    return average + x.amax(dim=places) if pooling == "average+max" else average


class Encoder(nn.Module):
    """Images, vectors or texts to unit vectors: backbone, pooling, optional layer norm, linear head.

    ``preprocess`` makes network input from images or texts and is ``None`` for vectors; ``class_names`` are those of
    the training classes. ``backbone`` and ``head`` are used in place of those that ``config`` would build.

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
        # Convolutions on a CPU are 1.2 to 1.7 times as fast in this memory format, whatever the input's.
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
        """The encoder on the backbone called ``name``; ``options`` are those of `EncoderConfig`."""
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
        """The encoder on any module from images, vectors or token ids to features.

        Feature maps are pooled, ``(batch, tokens, features)`` is averaged over tokens, and ``(batch, features)`` is
        used as it is. For vectors give ``in_features``; for texts a ``preprocess`` from a list of strings to the
        module's input; for images a `Preprocess`, by default ``module.preprocess`` or else 224 pixels with ImageNet's
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
        """Where the parameters are."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    @property
    def num_stages(self) -> int:
        """Number of stages of the backbone."""
        return len(self.backbone.stage_names)

    @property
    def takes(self) -> Kind:
        """The kind of item that it embeds: "image", "vector" or "text"."""
        if self.preprocess is None:
            return "vector"
        return "image" if isinstance(self.preprocess, Preprocess) else "text"

    # From items to embeddings, and the steps in between.

    @torch.no_grad()
    def embed(self, items: Images | Vectors | Texts, batch_size: int = 64) -> Float32[np.ndarray, "items dim"]:
        """Embeddings of ``items``, one row each: images, vectors or texts, whichever the encoder takes.

        Images are paths, Pillow images or 8-bit arrays of height×width×3, of any size, and get the evaluation view;
        vectors are an array, a tensor or a list of rows; texts are strings. A single item gives one row. Computes on
        the encoder's device, in evaluation mode.
        """
        if batch_size < 1:
            raise UserError(f"batch_size = {batch_size} must be at least 1")
        device, was_training = self.device, self.training
        self.eval()
        try:
            batches = input_batches(items, self.preprocess, self.config.in_features, batch_size)
            network, embeddings = self, []
            for batch in batches:
                if len(batch) >= FEWEST_FOLDED and network is self:
                    network = self.fast()
                embeddings.append(network(self.prepare(batch).to(device)).float().cpu().numpy())
        finally:
            self.train(was_training)
        return np.concatenate([np.empty((0, self.dim), dtype=np.float32), *embeddings])

    def prepare(self, batch: Batch) -> Num[Tensor, "batch ..."]:
        """Network input from a batch of 8-bit RGB images, texts, or vectors, which stay as they are."""
        return batch if self.preprocess is None else self.preprocess(batch)  # type: ignore[arg-type, return-value]

    def example(self, count: int = 1) -> Num[Tensor, "count ..."]:
        """Network input of ``count`` blank items, for its shape."""
        return example_input(self.preprocess, self.config.in_features, count)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Embeddings of network input, which `prepare` makes."""
        return self.run_from(inputs, 0)

    def features(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """Pooled features of the backbone, before the layer norm and the head."""
        return self.features_from(inputs, 0)

    def run_trunk(self, inputs: Num[Tensor, "batch ..."], last: int) -> Num[Tensor, "batch ..."]:
        """Output of the first ``last`` stages, which can be cached if they are frozen."""
        return self.backbone.run(inputs, 0, last)

    def run_from(self, x: Num[Tensor, "batch ..."], first: int) -> Float[Tensor, "batch dim"]:
        """Embeddings from the output of the first ``first`` stages: the rest of `forward`."""
        return self.project(self.features_from(x, first))

    def features_from(self, x: Num[Tensor, "batch ..."], first: int) -> Float[Tensor, "batch features"]:
        """Pooled features from the output of the first ``first`` stages; pooled features stay as they are."""
        return pool(self.backbone.run(x, first), self.config.pooling)

    def head_input(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        """Pooled features as the head takes them: after the layer norm, if there is one."""
        return features if self.layer_norm is None else self.layer_norm(features)

    def project(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """Embeddings of pooled features."""
        features = self.head_input(features)
        return F.normalize(features if self.head is None else self.head(features), dim=-1)

    def truncated(self, dim: int) -> "Encoder":
        """An encoder of the first ``dim`` numbers of the embeddings, as unit vectors, on the same backbone.

        Example:
            >>> encoder = Encoder.from_backbone("linear", dim=4, in_features=3)
            >>> encoder.truncated(2).embed([[1.0, 2.0, 3.0]]).shape
            (1, 2)
        """
        if not 1 <= dim <= self.dim:
            raise UserError(f"dim = {dim} must be from 1 to {self.dim}, the width of the embeddings")
        if not isinstance(self.head, nn.Linear):
            raise UserError("this encoder has no linear head to cut")
        head = nn.Linear(self.head.in_features, dim, device=self.device, dtype=self.head.weight.dtype)
        shorter = Encoder(replace(self.config, dim=dim), self.class_names, backbone=self.backbone, head=head)
        shorter.set_head(self.head.weight[:dim], self.head.bias[:dim])
        shorter.preprocess = self.preprocess
        return shorter.eval()

    def fast(self) -> "Encoder":
        """This encoder, computed faster (`softtriple.models.folding`), in the same mode: for loops, not for saving.

        It shares parameters and buffers with this one, so that it can be trained and is never out of date. A network
        on texts or vectors, or of the user's own, stays as it is.
        """
        if self.takes != "image" or not self.backbone.cacheable:
            return self
        if self._pairs is None:
            was_training = self.training
            self.eval()
            self._pairs = find_pairs(self, self.example().to(self.device))
            self.train(was_training)
        return fast_view(self, self._pairs)

    # What is trained.

    def set_trainable(self, part: str) -> int:
        """Train ``"head"``, ``"last:N"`` (the head and the last N stages) or ``"all"``; the rest is frozen.

        ``"lora"`` trains the head and low-rank changes of a transformer's attention. Returns the number of frozen
        stages. They stay in evaluation mode, so their output for an input never changes and can be cached.
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
        """Freeze nothing of batch norm, its running statistics, or those and its scale and shift.

        With ``"statistics"`` every batch norm uses its running mean and variance in training as well and does not
        update them, while scale and shift are still trained: the usual fine-tuning on batches too small to estimate
        statistics, and what the SoftTriple authors' code does. ``"statistics+affine"`` freezes scale and shift too.
        Later calls of ``train()`` keep it.
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
        """Evaluate images of ``size`` pixels; UserError if the backbone does not take them: some take one size only."""
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
        """Write all that inference needs to ``folder``: model.safetensors, encoder.json and the backbone's files.

        Each file appears, or replaces an older one, in one step.
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
        """A hash of the weights, the configuration and the preprocessing; the same before and after saving."""
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
        """The encoder in ``folder``, or in the ``encoder`` folder of the run directory ``folder``, to evaluate.

        An encoder made by `from_module` needs ``backbone``, a module of the same architecture, which gets the saved
        weights; one on texts also needs its ``preprocess``, unless the module has it.

        Nothing outside ``folder`` is opened, nothing in it is executed, and no network is used. ``trust`` lifts that
        for encoders of earlier versions on ``st:NAME``, which have to read the model NAME: only for files of your own.
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
            # What the weights were trained on, even if this version's default differs.
            encoder.preprocess = saved_preprocess
        return encoder.eval()

    @classmethod
    def from_pretrained(cls, name: str, *, revision: str | None = None, **options: Any) -> "Encoder":
        """The encoder of the folder ``name``, or of the repository USER/NAME of the Hugging Face hub, to evaluate.

        ``revision`` is a branch, a tag or a commit of the repository; ``options`` are those of `load`. What comes from
        the hub is data: it is not executed.
        """
        if Path(name).is_dir():
            if revision is not None:
                raise UserError(f"{name} is a folder, which has no revision = {revision!r}")
            return cls.load(name, **options)
        return cls.load(snapshot(name, ENCODER_FILES, revision), **options)
