"""The encoder: backbone, pooling, optional layer norm, linear head, unit length. And its files."""

import importlib.metadata
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Num
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from softtriple.config import build_checked, refuse_newer
from softtriple.files import appearing_file, write_whole
from softtriple.models.backbones import Takes, build_backbone
from softtriple.models.heads import Tap, TappedHeads, in_cells
from softtriple.models.inputs import Batch, Images, Texts, Vectors, input_batches
from softtriple.models.preprocess import Preprocess
from softtriple.models.weights import load_exactly, read_tensors, refuse_misfits, sha256_of, write_tensors

Pooling = Literal["average", "average+max"]
FrozenBatchNorm = Literal["off", "statistics", "statistics+affine"]

FORMAT = 1  # of encoder.json: raise it when an older softtriple would misread what is written
_WEIGHTS = "model.safetensors"
_DESCRIPTION = "encoder.json"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which encoder to build.

    ``dim=None`` means no head: pooled features of unit length. ``pooling="average+max"`` adds the maximum over the
    map to its mean. ``layer_norm`` standardises pooled features before the head. ``pretrained`` starts from the
    backbone's published weights, where it has any; ``weights`` says where that file is, if not at its usual place.
    ``heads=3`` taps the backbone at three depths, the first two by averages over 4×4 cells of the map whatever
    ``pooling`` is; the three heads have equal parts of ``dim``, side by side.
    The remaining options belong to some backbones only, and ``None`` is the backbone's own default.
    """

    backbone: str = "efficientnet-lite0"
    dim: int | None = 64
    pooling: Pooling = "average"
    layer_norm: bool = False
    heads: Literal[1, 3] = 1
    pretrained: bool = True
    weights: str | None = None
    input_size: int | None = None
    width: int | None = None
    buckets: int | None = None
    in_features: int | None = None
    hidden: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim < 1:
            raise ValueError(f"encoder: dim = {self.dim} is not positive")
        if self.heads not in (1, 3) or (self.heads == 3 and (self.dim is None or self.dim % 3)):
            raise ValueError(f"encoder: heads = {self.heads} must be 1, or 3 with a dim that is a multiple of 3")
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"encoder: pooling = {self.pooling!r} is not {' or '.join(get_args(Pooling))}")

    @property
    def backbone_options(self) -> dict[str, Any]:
        """The options for ``build_backbone`` that were given."""
        options = {
            "input_size": self.input_size,
            "width": self.width,
            "buckets": self.buckets,
            "in_features": self.in_features,
            "hidden": self.hidden,
        }
        return {name: value for name, value in options.items() if value is not None}


class Encoder(nn.Module):
    """Images, vectors or texts to unit vectors: backbone, pooling, optional layer norm, linear head.

    ``preprocess`` makes network input from images or texts and is ``None`` where the input is vectors; ``class_names``
    are those of the training classes, for whoever loads the encoder later.

    Example:
        >>> encoder = Encoder.from_backbone("linear", dim=2, in_features=3)
        >>> encoder.embed([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).shape
        (2, 2)
    """

    def __init__(self, config: EncoderConfig, class_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.class_names = tuple(class_names)
        self.backbone = build_backbone(
            config.backbone, pretrained=config.pretrained, weights=config.weights, **config.backbone_options
        )
        # Convolutions on a CPU are 1.2 to 1.7 times as fast in this order of memory, whatever that of the input.
        self.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preprocess = self.backbone.preprocess
        if self.takes != "images" and config.pooling != "average":
            raise ValueError(f"{config.backbone} takes {self.takes}: there is nothing to pool by {config.pooling}")
        self._taps = self.backbone.taps if config.heads == 3 else (self.num_stages,)
        shallow, pooled = self._shallow_taps() if config.heads == 3 else [], self.backbone.num_features
        self._num_features = sum(tap.channels * tap.cells for tap in shallow) + pooled
        self.head: nn.Linear | TappedHeads | None = None
        if config.dim is not None:
            self.head = TappedHeads(shallow, pooled, config.dim) if shallow else nn.Linear(pooled, config.dim)
        self.layer_norm = nn.LayerNorm(self._num_features, elementwise_affine=False) if config.layer_norm else None
        self._frozen_stages = 0
        self._frozen_batch_norm: FrozenBatchNorm = "off"

    @classmethod
    def from_backbone(cls, name: str, dim: int | None = 64, **options: Any) -> "Encoder":
        """The encoder on the backbone called ``name``; ``options`` are those of ``EncoderConfig``."""
        return cls(EncoderConfig(backbone=name, dim=dim, **options))

    @property
    def dim(self) -> int:
        """Length of the vectors that come out."""
        return self.config.dim or self.backbone.num_features

    @property
    def num_stages(self) -> int:
        """Number of stages of the backbone."""
        return len(self.backbone.stage_names)

    @property
    def takes(self) -> Takes:
        """What it makes vectors of: "images", "vectors" or "texts"."""
        if self.preprocess is None:
            return "vectors"
        return "images" if isinstance(self.preprocess, Preprocess) else "texts"

    # From input to unit vectors, and the parts of that way.

    @torch.no_grad()
    def embed(self, items: Images | Vectors | Texts, batch_size: int = 64) -> Float32[np.ndarray, "items dim"]:
        """Unit vectors of ``items``: images, vectors or texts, whichever the encoder takes; of one item, one row.

        Images are paths, Pillow images or 8-bit arrays of height×width×3, in any size; vectors are an array, tensor or
        list of rows; texts are strings. Images are cut as in evaluation. Computes on the encoder's device, in
        evaluation mode.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size} is too small: at least 1 is needed")
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        was_training = self.training
        self.eval()
        try:
            batches = input_batches(items, self.preprocess, self.config.in_features or 0, batch_size)
            found = [self(self.prepare(batch).to(device)).float().cpu().numpy() for batch in batches]
        finally:
            self.train(was_training)
        return np.concatenate([np.empty((0, self.dim), dtype=np.float32), *found])

    def prepare(self, batch: Batch) -> Num[Tensor, "batch ..."]:
        """Network input from a batch as data come: 8-bit RGB images, texts, or vectors, which stay as they are."""
        return batch if self.preprocess is None else self.preprocess(batch)  # type: ignore[arg-type, return-value]

    def example(self, count: int = 1) -> Num[Tensor, "count ..."]:
        """Network input of ``count`` blank items, for whoever needs its shape."""
        if self.preprocess is None:
            return torch.zeros(count, self.config.in_features or 1)
        if isinstance(self.preprocess, Preprocess):
            return self.preprocess(torch.zeros(count, self.preprocess.size, self.preprocess.size, 3, dtype=torch.uint8))
        return self.preprocess([""] * count)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Unit vectors of network input, as ``prepare`` makes it."""
        return self.project(self.features(inputs))

    def features(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """Pooled features of the backbone, before the layer norm and the head."""
        return self.features_from(inputs, 0)

    def project(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """Unit vectors of pooled features."""
        if self.layer_norm is not None:
            features = self.layer_norm(features)
        if self.head is not None:
            features = self.head(features)
        return F.normalize(features, dim=-1)

    def run_trunk(self, inputs: Num[Tensor, "batch ..."], last: int) -> Num[Tensor, "batch ..."]:
        """Output of the first ``last`` stages: what a cache of a frozen trunk keeps."""
        return self.backbone.run(inputs, 0, last)

    def run_from(self, x: Num[Tensor, "batch ..."], first: int) -> Float[Tensor, "batch dim"]:
        """Unit vectors from the output of the first ``first`` stages: the rest of ``forward``."""
        return self.project(self.features_from(x, first))

    def features_from(self, x: Num[Tensor, "batch ..."], first: int) -> Float[Tensor, "batch features"]:
        """Pooled features from the output of the first ``first`` stages, or from kept features themselves."""
        if first == self.num_stages and x.ndim == 2 and x.shape[1] == self._num_features:
            return x
        if first > self._taps[0]:
            raise ValueError(
                f"the first of {len(self._taps)} heads taps the backbone after {self._taps[0]} stages, and {first} are"
                " frozen and kept; train the head alone, all layers, or more of the last ones"
            )
        shallow = []
        for tap in self._taps[:-1]:
            x, first = self.backbone.run(x, first, tap), tap
            shallow.append(in_cells(x))
        pooled = self._pool(self.backbone.run(x, first))
        return torch.cat([*shallow, pooled], dim=1) if shallow else pooled

    def _pool(self, x: Float[Tensor, "batch features ..."]) -> Float[Tensor, "batch features"]:
        if x.ndim == 2:
            return x
        average = x.mean(dim=(2, 3))
        return average + x.amax(dim=(2, 3)) if self.config.pooling == "average+max" else average

    @torch.no_grad()
    def _shallow_taps(self) -> list[Tap]:
        x = self.example()
        self.backbone.eval()
        tapped = [self.backbone.run(x, 0, tap) for tap in self._taps[:-1]]
        return [Tap(x.shape[1], in_cells(x).shape[1] // x.shape[1]) for x in tapped]

    # What learns.

    def set_trainable(self, part: str) -> int:
        """Let ``"head"``, ``"last:N"`` (the head and the last N stages) or ``"all"`` learn; the rest is frozen.

        Returns the number of frozen stages. They also stay in evaluation mode, so that what they give for an input
        never changes and may be kept.
        """
        self._frozen_stages = self._count_frozen(part)
        self._apply_frozen()
        return self._frozen_stages

    def freeze_batch_norm(self, mode: FrozenBatchNorm) -> None:
        """Freeze nothing of batch norm, its running statistics, or those and its scale and shift.

        With ``"statistics"`` every batch norm normalises by its running mean and variance also in training, and
        does not update them, while its scale and shift still learn: the usual fine-tuning on batches too small
        to estimate statistics, and what the SoftTriple authors' code does. ``"statistics+affine"`` stops scale
        and shift too, so that batch norm is a constant map. Holds through later calls of ``train()``.
        """
        if mode not in get_args(FrozenBatchNorm):
            raise ValueError(f"batch norm: {mode!r} is not one of {', '.join(get_args(FrozenBatchNorm))}")
        self._frozen_batch_norm = mode
        self._apply_frozen()

    def train(self, mode: bool = True) -> "Encoder":
        """Set training mode, except for what is frozen."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        return self

    @torch.no_grad()
    def initialize_head_from_pca(self, features: Float[Tensor, "items features"]) -> None:
        """Make the head the projection on the principal directions of pooled ``features``, not whitened.

        A head that starts there keeps what the backbone's features tell apart, where a random one loses part.
        """
        if not isinstance(self.head, nn.Linear):
            raise ValueError("only a single linear head starts from PCA: this encoder has none, or several")
        items, dim = len(features), self.head.out_features
        if dim > min(items - 1, features.shape[1]):
            raise ValueError(
                f"PCA to dim = {dim} needs more than {dim} items and at least {dim} features,"
                f" not {items} and {features.shape[1]}"
            )
        if self.layer_norm is not None:
            features = self.layer_norm(features.to(self.head.weight.device)).cpu()
        rows = features.double()
        mean = rows.mean(dim=0)
        _, directions = torch.linalg.eigh((rows - mean).T @ (rows - mean))
        principal = directions[:, -dim:].flip(1).T
        self.head.weight.copy_(principal)
        self.head.bias.copy_(-principal @ mean)

    def _count_frozen(self, part: str) -> int:
        if part == "all":
            return 0
        if part == "head" and self.head is None:
            raise ValueError("trainable = 'head': this encoder has no head (dim = none)")
        if part == "head":
            return self.num_stages
        kind, _, number = part.partition(":")
        if kind == "last" and number.isdecimal() and 1 <= int(number) <= self.num_stages:
            return self.num_stages - int(number)
        raise ValueError(
            f"trainable = {part!r} is not head, all or last:N with N from 1 to the"
            f" {self.num_stages} stages of {self.config.backbone}"
        )

    def _apply_frozen(self) -> None:
        self.requires_grad_(True)
        for index in range(self._frozen_stages):
            for module in self.backbone.stage_modules(index):
                module.requires_grad_(False)
        if self._frozen_batch_norm == "statistics+affine":
            for norm in self._batch_norms():
                norm.requires_grad_(False)
        self.train(self.training)

    def _frozen_modules(self) -> Iterator[nn.Module]:
        for index in range(self._frozen_stages):
            yield from self.backbone.stage_modules(index)
        if self._frozen_batch_norm != "off":
            yield from self._batch_norms()

    def _batch_norms(self) -> Iterator[nn.Module]:
        return (module for module in self.modules() if isinstance(module, _BatchNorm))

    # Files.

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all that inference needs to ``folder``: model.safetensors and encoder.json.

        Each file appears, or replaces an older one, in one step; encoder.json comes last and holds the checksum of
        the weights, so that it is never read with others.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.state_dict().items()}
        with appearing_file(folder / _WEIGHTS) as temporary:
            write_tensors(temporary, tensors)
            checksum = sha256_of(temporary)
        description = {
            "format": FORMAT,
            "softtriple": importlib.metadata.version("softtriple"),
            "sha256": checksum,
            "config": asdict(self.config),
            "preprocess": asdict(self.preprocess) if isinstance(self.preprocess, Preprocess) else None,
            "class_names": self.class_names,
        }
        write_whole(folder / _DESCRIPTION, json.dumps(description, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Encoder":
        """The encoder in ``folder``, or in the ``encoder`` folder of the run directory ``folder``, to evaluate."""
        inner = Path(folder) / "encoder"
        folder = inner if inner.is_dir() else Path(folder)
        for name in (_DESCRIPTION, _WEIGHTS):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder}: no encoder here, {name} is missing")
        described = _read_description(folder / _DESCRIPTION)
        tensors = read_tensors(folder / _WEIGHTS)
        bare = replace(described.config, pretrained=False, weights=None)
        try:
            # On the meta device sizes take no memory: a description that does not fit the weights never gets any.
            with torch.device("meta"):
                sketch = cls(bare)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / _DESCRIPTION}: no encoder can be built like that ({error})") from error
        refuse_misfits(sketch, tensors, str(folder / _WEIGHTS))
        if described.sha256 not in (None, sha256_of(folder / _WEIGHTS)):
            raise ValueError(f"{folder / _WEIGHTS}: damaged, or not the weights that {_DESCRIPTION} belongs to")
        encoder = cls(bare, described.class_names)
        encoder.config = described.config
        if described.preprocess is not None:
            # What the weights were trained on, even where this version's default has become another.
            encoder.preprocess = described.preprocess
        load_exactly(encoder, tensors, str(folder / _WEIGHTS))
        return encoder.eval()


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The content of encoder.json; early ones have neither ``format`` nor ``sha256``."""

    config: EncoderConfig
    preprocess: Preprocess | None
    class_names: tuple[str, ...]
    format: int = FORMAT
    sha256: str | None = None
    softtriple: str = ""


def _read_description(path: Path) -> _Description:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not the description of an encoder ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not the description of an encoder but a {type(content).__name__}")
    refuse_newer(path, content.get("format"), FORMAT)
    description = build_checked(_Description, content, where=str(path))
    assert isinstance(description, _Description)
    return description
