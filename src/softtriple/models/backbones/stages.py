"""The base class of backbones: a network as a sequence of named stages.

Stages make it possible to compute the output of frozen stages once and cache it: ``run(x, 0, n)`` now, ``run(cached,
n)`` later.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float, Num
from torch import Tensor, nn

from softtriple.models.preprocess import Preprocess, TextPreprocess


class StagedNetwork(nn.Module, ABC):
    """A network that can be run from any of its stages to any other.

    ``num_features`` is the number of channels of a feature map, or the width of feature vectors; ``preprocess`` turns
    images or texts into input and is ``None`` for networks on vectors. ``pooled`` means that the output is feature
    vectors already, by default if the input is not images. ``cacheable`` means that name and weights of the network
    determine its output, so that features may be cached on disk. ``files`` maps names to texts that are saved beside
    the weights, if the network cannot be built without them.
    """

    def __init__(
        self,
        *,
        stage_names: tuple[str, ...],
        num_features: int,
        preprocess: Preprocess | TextPreprocess | None,
        pooled: bool | None = None,
        cacheable: bool = True,
        files: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.stage_names = stage_names
        self.num_features = num_features
        self.preprocess = preprocess
        self.pooled = not isinstance(preprocess, Preprocess) if pooled is None else pooled
        self.cacheable = cacheable
        self.files = dict(files or {})

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
        """The modules that make up stage ``index``: children of its name, or of its name followed by ``_``."""
        stage = self.stage_names[index]
        return [module for name, module in self.named_children() if name == stage or name.startswith(f"{stage}_")]

    def first_modules(self, count: int) -> list[nn.Module]:
        """The modules of the first ``count`` stages."""
        return [module for index in range(count) for module in self.stage_modules(index)]


class Chain(StagedNetwork):
    """A network whose stages are modules that run one after another; ``settings`` are passed to `StagedNetwork`."""

    def __init__(self, stages: Mapping[str, nn.Module], **settings: Any) -> None:
        super().__init__(stage_names=tuple(stages), **settings)
        for name, module in stages.items():
            self.add_module(name, module)

    def run_stage(self, index: int, x: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of the module that is stage ``index``."""
        output: Tensor = self.get_submodule(self.stage_names[index])(x)
        return output


class LibraryNetwork(StagedNetwork):
    """A library's network in stages: a stem, its blocks, and a tail.

    ``blocks`` and ``tail`` name modules of ``network``; everything else belongs to the stem. Without ``blocks`` the
    network is a single stage. ``settings`` are passed to `StagedNetwork`.
    """

    def __init__(self, network: nn.Module, *, blocks: Sequence[str], tail: Sequence[str], **settings: Any) -> None:
        names = ("stem", *blocks, *(("tail",) if tail else ())) if blocks else ("network",)
        super().__init__(stage_names=names, **settings)
        self.network = network
        self._blocks, self._tail = tuple(blocks), tuple(tail)

    @abstractmethod
    def run_stem(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Input of the first block; the features, if there are no blocks."""

    @abstractmethod
    def run_block(self, index: int, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of block ``index``."""

    @abstractmethod
    def run_tail(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Features from the output of the last block."""

    def run_stage(self, index: int, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of stage ``index``."""
        if index == 0:
            return self.run_stem(x)
        return self.run_block(index - 1, x) if index <= len(self._blocks) else self.run_tail(x)

    def block(self, index: int) -> nn.Module:
        """The module that is block ``index``."""
        return self.network.get_submodule(self._blocks[index])

    def stage_modules(self, index: int) -> list[nn.Module]:
        """The modules of a block or the tail; for the stem, modules with all remaining parameters."""
        blocks, tail = ([self.network.get_submodule(name) for name in names] for names in (self._blocks, self._tail))
        if index == 0:
            return _remainder(self.network, {*blocks, *tail})
        return [blocks[index - 1]] if index <= len(blocks) else tail


def _remainder(module: nn.Module, taken: set[nn.Module]) -> list[nn.Module]:
    """Modules that together have the parameters of ``module`` that are not in ``taken``."""
    if module in taken:
        return []
    if taken.isdisjoint(module.modules()):
        return [module]
    parts = [part for child in module.children() for part in _remainder(child, taken)]
    loose = dict(module.named_parameters(recurse=False))  # such as class token and position embeddings
    return [nn.ParameterDict(loose), *parts] if loose else parts
