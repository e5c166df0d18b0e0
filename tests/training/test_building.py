"""What a resolved configuration describes is built."""

import numpy as np
import pytest

from softtriple.config import Config, with_settings
from softtriple.data import make_benchmark
from softtriple.models import build_backbone
from softtriple.training.building import build_encoder


@pytest.mark.parametrize(
    ("weights", "kept"), [("folder/weights.pth", None), ("https://host/weights.pth", "https://host/weights.pth")]
)
def test_an_encoder_names_the_address_of_its_weights_but_no_path(weights: str, kept: str | None) -> None:
    """Where a file lay on this machine is published with the encoder otherwise."""
    settings = ["model.backbone=linear", "model.dim=2", "model.pooling=average", "model.freeze_batch_norm=off"]
    config = with_settings(Config(), [*settings, f"model.weights={weights}"])
    benchmark = make_benchmark(np.eye(8, 3, dtype=np.float32), np.repeat(np.arange(4), 2))
    encoder = build_encoder(config, benchmark, [], build_backbone("linear", in_features=3))
    assert encoder.config.weights == kept
