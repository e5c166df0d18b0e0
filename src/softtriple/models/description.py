"""The configuration of an encoder, and encoder.json, which stores it beside the weights."""

import json
import reprlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError

from softtriple.config import check_format
from softtriple.errors import UserError
from softtriple.models.preprocess import Preprocess

Pooling = Literal["average", "average+max"]

FORMAT = 1  # of encoder.json; increase it when older versions would misread the file


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which encoder to build.

    ``dim=None`` means no head: pooled features, normalised. ``pooling="average+max"`` adds the maximum over the feature
    map to its mean. ``layer_norm`` standardises pooled features before the head. ``pretrained`` loads the backbone's
    published weights, if there are any; ``weights`` is the path or URL of their file, if not the default. ``eval_size``
    is the side of images in evaluation, if it differs from ``input_size`` in training. The remaining options exist for
    some backbones only; ``None`` is the backbone's default.
    """

    backbone: str = "efficientnet-lite0"
    dim: int | None = 64
    pooling: Pooling = "average"
    layer_norm: bool = False
    pretrained: bool = True
    weights: str | None = None
    eval_size: int | None = None
    input_size: int | None = None
    width: int | None = None
    buckets: int | None = None
    in_features: int | None = None
    hidden: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim < 1:
            raise UserError(f"encoder: dim = {self.dim} must be positive")
        if self.pooling not in get_args(Pooling):
            raise UserError(f"encoder: pooling = {self.pooling!r} must be {' or '.join(get_args(Pooling))}")

    @property
    def backbone_options(self) -> dict[str, Any]:
        """The options for `build_backbone` that are set."""
        names = ("input_size", "width", "buckets", "in_features", "hidden")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class Description(BaseModel, extra="forbid", strict=True, frozen=True, allow_inf_nan=False):
    """The content of encoder.json."""

    format: int
    softtriple: str
    sha256: str
    config: EncoderConfig
    preprocess: Preprocess | None
    class_names: tuple[str, ...]
    files: dict[str, str] = Field(default_factory=dict)  # name and SHA-256 of the backbone's files


def identity(config: EncoderConfig, preprocess: Any) -> list[dict[str, Any] | None]:
    """What determines the embeddings besides the weights, as JSON values: configuration and preprocessing."""
    # Format 1 has a number of heads, which is always 1 now, and no eval_size: old encoders keep their fingerprint.
    described_config = _without_eval_size(asdict(config)) | {"heads": 1}
    return [described_config, _without_eval_size(asdict(preprocess)) if isinstance(preprocess, Preprocess) else None]


def _without_eval_size(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "eval_size" or value is not None}


def read_description(path: Path) -> Description:
    """Read and validate the encoder.json at ``path``; a UserError names the file and the key."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not the description of an encoder ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not the description of an encoder, but a {type(content).__name__}")
    check_format(path, content.get("format"), FORMAT)
    if isinstance(content.get("config"), dict) and content["config"].pop("heads", 1) != 1:
        raise UserError(f"{path}: encoders with several heads (HDC) of earlier versions cannot be read")
    try:
        return Description.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise UserError(f"{path}: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{key!r} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {key!r}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return message if first["type"] == "value_error" else f"{key} = {reprlib.repr(first['input'])} must be {message}"
