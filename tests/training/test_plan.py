"""What is trained, by the device and by the clock."""

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.data import ImageArray, Split, View
from softtriple.errors import UserError
from softtriple.models import Encoder
from softtriple.models.features import Reading
from softtriple.progress import Reporter
from softtriple.training import plan
from softtriple.training.plan import Plan, check_budget, choose_trainable, plan_training

QUIET = Reporter(quiet=True)
DRAWINGS = Split(ImageArray(np.zeros((10, 32, 32), dtype=np.uint8)), np.repeat(np.arange(2), 5))


@pytest.mark.parametrize(("device", "trainable"), [("cpu", "head"), ("cuda", "all")])
def test_without_a_budget_the_device_decides_what_is_trained(device: str, trainable: str) -> None:
    reading = Reading(View(size=224, resize=256))
    arguments = (Encoder.from_backbone("conv-small", dim=4), DRAWINGS, reading)
    config = choose_trainable(Config(), *arguments, torch.device(device), QUIET)
    assert config.model.trainable == trainable
    assert choose_trainable(config, *arguments, torch.device(device), QUIET) == config


@pytest.mark.parametrize(
    ("minutes", "first"),
    [
        (100, Plan("all", 224, 50, 5000.0)),
        (20, Plan("all", 224, 12, 1200.0)),
        (5, Plan("all", 160, 5, 5 * 1000 / 10 / 1.96)),  # (224 / 160)² = 1.96 times as fast
        (2, Plan("head", None, 50, 1000 * 4 / 40)),
    ],
)
def test_a_budget_is_spent_on_as_much_of_the_network_as_it_allows(minutes: int, first: Plan) -> None:
    plans = plan_training(
        items=1000,
        size=224,
        candidates=[224, 160],
        views=4,
        epochs=50,
        forward=40.0,
        training=10.0,
        seconds=60.0 * minutes,
    )
    assert plans[0][:3] == first[:3]
    assert plans[0].seconds == pytest.approx(first.seconds)
    assert plans[0].seconds <= 60 * minutes
    assert plans[-1].trainable == "head"


def test_a_budget_too_short_for_all_layers_says_how_long_they_would_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_seconds", lambda function: 98.0)  # for ten items
    arguments = (Encoder.from_backbone("conv-small", dim=4), DRAWINGS, Reading(View(size=224, resize=256)))
    config = with_settings(Config(), ["train.minutes=0.1", "train.epochs=20"])
    choose_trainable(config, *arguments, torch.device("cpu"), Reporter())
    assert "160 pixels would take at least 3 min" in capsys.readouterr().err  # 4 epochs of 98 / 1.96 seconds


def test_a_plan_is_recorded_instead_of_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_seconds", lambda function: 1.0)  # for ten items
    items = DRAWINGS
    arguments = (Encoder.from_backbone("conv-small", dim=4), items, Reading(View(size=224, resize=256)))
    config = with_settings(Config(), ["train.minutes=0.2", "train.epochs=20"])
    chosen = choose_trainable(config, *arguments, torch.device("cpu"), QUIET)
    assert (chosen.model.trainable, chosen.train.epochs, chosen.train.minutes) == ("all", 12, None)
    config = with_settings(config, ["train.minutes=0.05"])
    chosen = choose_trainable(config, *arguments, torch.device("cpu"), QUIET)
    assert (chosen.model.input_size, chosen.model.eval_size, chosen.train.epochs) == (160, 224, 5)
    config = with_settings(config, ["model.input_size=224"])  # a size that was asked for is kept
    chosen = choose_trainable(config, *arguments, torch.device("cpu"), QUIET)
    assert (chosen.model.trainable, chosen.model.input_size) == ("head", 224)


@pytest.mark.parametrize(("minutes", "sizes"), [(None, (224, 256)), (1.0, (224, 256)), (0.03, (160, 224))])
def test_layers_are_trained_on_smaller_images_than_evaluated(
    minutes: float | None, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_seconds", lambda function: 1.0)  # for ten items
    items = DRAWINGS
    arguments = (Encoder.from_backbone("conv-small", dim=4), items, Reading(View(size=256, resize=293)))
    config = with_settings(Config(), ["model.backbone=efficientnet-lite0", "model.input_size=256"])
    config = with_settings(config, [] if minutes is None else [f"train.minutes={minutes}"])
    device = torch.device("cuda" if minutes is None else "cpu")
    chosen = choose_trainable(config, *arguments, device, QUIET).model
    assert (chosen.trainable, chosen.input_size, chosen.eval_size) == ("all", *sizes)


def test_a_budget_with_nothing_to_decide_is_refused() -> None:
    config = with_settings(Config(), ["train.minutes=5", "model.trainable=head"])
    with pytest.raises(UserError, match=r"train\.minutes = 5.*model\.trainable = 'head'"):
        check_budget(config)


def test_speed_is_measured_in_the_precision_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.dtype | None] = []

    def speeds(*arguments: object) -> tuple[float, float]:
        measured.append(arguments[-1])  # type: ignore[arg-type]
        return 1.0, 1.0

    monkeypatch.setattr(plan, "_items_per_second", speeds)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    encoder = Encoder.from_backbone("conv-small", dim=4)
    reading = Reading(View(size=32, resize=32))
    for settings in (["model.backbone=bn-inception"], ["train.precision=float32"], ["model.backbone=conv-small"]):
        config = with_settings(Config(), ["train.minutes=1", *settings])
        choose_trainable(config, encoder, DRAWINGS, reading, torch.device("cpu"), QUIET)
    assert measured == [torch.bfloat16, None, None]


@pytest.mark.parametrize("half", [None, torch.bfloat16])
def test_speeds_are_of_forward_and_of_both_passes(half: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def seconds(function) -> float:  # type: ignore[no-untyped-def]
        function()
        calls.append(1)
        return 2.0 * len(calls)

    monkeypatch.setattr(plan, "_seconds", seconds)
    encoder = Encoder.from_backbone("conv-small", dim=4)
    arguments = (encoder, DRAWINGS, Reading(View(size=32, resize=32)))
    assert plan._items_per_second(*arguments, torch.device("cpu"), half) == (5.0, 2.5)
    assert all(parameter.grad is None for parameter in encoder.parameters())
