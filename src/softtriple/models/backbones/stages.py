"""Networks as a sequence of named stages: what every backbone is.

Running a network in parts lets the features of frozen stages be computed once and cached: ``run(x, 0, n)`` now,
``run(cached, n)`` later.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from jaxtyping import Float, Num
from torch import Tensor, nn

from softtriple.models.preprocess import Preprocess, TextPreprocess


class StagedNetwork(nn.Module, ABC):
    """A network that can be run from any of its stages to any other.

    ``num_features`` is the number of channels of a feature map, or the width of feature vectors; ``preprocess`` makes
    the input from images or texts and is ``None`` for networks on vectors.
    A child module belongs to the stage of the same name, or whose name followed by ``_`` begins its own.
    """

    def __init__(
        self,
        *,
        stage_names: tuple[str, ...],
        num_features: int,
        preprocess: Preprocess | TextPreprocess | None,
    ) -> None:
        super().__init__()
        self.stage_names = stage_names
        self.num_features = num_features
        self.preprocess = preprocess

    @abstractmethod
    def run_stage(self, index: int, x: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of stage ``index`` for the output ``x`` of the stage before it."""

    def run(self, x: Num[Tensor, "batch ..."], first: int = 0, last: int | None = None) -> Num[Tensor, "batch ..."]:
        """Output of the stages ``first`` to ``last - 1``: ``run(run(x, 0, n), n)`` is ``run(x)``."""
        count = len(self.stage_names)
        last = count if last is None else last
        if not 0 <= first <= last <= count:
            raise ValueError(f"stages {first} to {last} do not lie between 0 and {count}")
        for index in range(first, last):
            x = self.run_stage(index, x)
        return x

    def forward(self, x: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of all stages: a feature map, tokens or feature vectors, not yet pooled."""
        return self.run(x)

    def stage_modules(self, index: int) -> list[nn.Module]:
        """The child modules that make up stage ``index``."""
        stage = self.stage_names[index]
        return [module for name, module in self.named_children() if name == stage or name.startswith(f"{stage}_")]


class Chain(StagedNetwork):
    """A network whose stages are modules, run one after another."""

    def __init__(
        self,
        stages: Mapping[str, nn.Module],
        *,
        num_features: int,
        preprocess: Preprocess | TextPreprocess | None,
    ) -> None:
        super().__init__(stage_names=tuple(stages), num_features=num_features, preprocess=preprocess)
        for name, module in stages.items():
            self.add_module(name, module)

    def run_stage(self, index: int, x: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of the module that is stage ``index``."""
        output: Tensor = self.get_submodule(self.stage_names[index])(x)
        return output
