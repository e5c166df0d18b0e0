"""SoftTripleLoss inside pytorch-metric-learning: its trainers, samplers, miners and testers."""

from typing import Any

import pytest
import torch
from pytorch_metric_learning import miners, samplers, testers, trainers
from torch import nn
from torch.utils.data import TensorDataset

from softtriple import Embeddings, NormalizedSoftmaxLoss, SoftTripleLoss, evaluate

NUM_CLASSES, FEATURES, DIM = 6, 16, 8

# Their progress bar formats a tensor that still has its gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning")


def blobs(per_class: int, seed: int) -> TensorDataset:
    """Classes of two far-apart modes each, in more dimensions than they need."""
    random = torch.Generator().manual_seed(0)
    modes = 3 * torch.randn(NUM_CLASSES, 2, FEATURES, generator=random)
    random.manual_seed(seed)
    labels = torch.arange(NUM_CLASSES).repeat_interleave(per_class)
    which = torch.arange(len(labels)) % 2
    return TensorDataset(modes[labels, which] + torch.randn(len(labels), FEATURES, generator=random), labels)


def trainer_of(loss: nn.Module, data: TensorDataset, **options: Any) -> trainers.MetricLossOnly:
    torch.manual_seed(0)
    trunk, embedder = nn.Identity(), nn.Linear(FEATURES, DIM)
    return trainers.MetricLossOnly(
        models={"trunk": trunk, "embedder": embedder},
        optimizers={
            "embedder_optimizer": torch.optim.Adam(embedder.parameters(), lr=1e-2),
            "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), lr=1e-2),
        },
        batch_size=24,
        loss_funcs={"metric_loss": loss},
        dataset=data,
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        **options,
    )


@pytest.mark.parametrize("loss", [SoftTripleLoss(NUM_CLASSES, DIM, 2), NormalizedSoftmaxLoss(NUM_CLASSES, DIM)])
def test_their_trainer_trains_it_with_their_sampler(loss: SoftTripleLoss) -> None:
    data = blobs(per_class=20, seed=1)
    sampler = samplers.MPerClassSampler(data.tensors[1], m=4, batch_size=24, length_before_new_iter=120)
    trainer = trainer_of(loss, data, sampler=sampler)
    before = loss.centers.detach().clone()
    trainer.train(num_epochs=8)
    assert not torch.equal(loss.centers, before)
    with torch.no_grad():
        predicted = loss.predict(trainer.models["embedder"](data.tensors[0]))
    assert (predicted == data.tensors[1]).double().mean() > 0.95


def test_their_tester_finds_what_evaluate_finds() -> None:
    torch.manual_seed(0)
    data, embedder = blobs(per_class=20, seed=2), nn.Linear(FEATURES, DIM)
    tester = testers.GlobalEmbeddingSpaceTester(dataloader_num_workers=0, data_device=torch.device("cpu"))
    theirs = tester.test({"test": data}, epoch=0, trunk_model=nn.Identity(), embedder_model=embedder)["test"]
    with torch.no_grad():
        ours = evaluate(Embeddings(embedder(data.tensors[0]), data.tensors[1]), bootstrap=0)
    assert ours.precision_at_1 == pytest.approx(theirs["precision_at_1_level0"])
    assert ours.map_at_r == pytest.approx(theirs["mean_average_precision_at_r_level0"])


def test_a_miner_can_select_part_of_the_batch() -> None:
    class HalfOfTheBatch(miners.BaseMiner):
        def mine(self, embeddings: Any, labels: Any, *_: Any) -> Any:
            return torch.arange(0, len(labels), 2)

        def output_assertion(self, output: Any) -> None:
            pass

    seen: list[int] = []
    loss = SoftTripleLoss(NUM_CLASSES, DIM, 2)
    loss.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[1])))
    trainer = trainer_of(loss, blobs(20, seed=1), mining_funcs={"subset_batch_miner": HalfOfTheBatch()})
    trainer.train(num_epochs=1)
    assert seen == [12] * 5


def test_a_miner_of_pairs_is_an_error() -> None:
    trainer = trainer_of(
        SoftTripleLoss(NUM_CLASSES, DIM, 2),
        blobs(20, seed=1),
        mining_funcs={"tuple_miner": miners.MultiSimilarityMiner()},
    )
    with pytest.raises(ValueError, match="compares examples with centres"):
        trainer.train(num_epochs=1)
