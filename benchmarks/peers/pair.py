"""Pairs of a mixer of lra-bench and a corresponding layer of another package with the same sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from lra_bench.build import build
from lra_bench.contracts import UserError, install_command
from lra_bench.models.mixer import Context, Mixer, name_modules


@dataclass(frozen=True)
class Sizes:
    """The sizes that both layers of a pair have in common."""

    length: int
    width: int = 256
    heads: int = 4

    @property
    def head_dim(self) -> int:
        """Number of channels per head."""
        return self.width // self.heads


@dataclass(frozen=True)
class Pair:
    """A layer of another package, built by ``theirs``, and a mixer of lra-bench.

    The mixer is given by the ``key`` of its model file and ``options`` that depend on the sizes. ``differs`` states in
    a phrase how the function of the peer differs.
    """

    package: str
    key: str
    theirs: Callable[[Sizes], nn.Module]
    options: Callable[[Sizes], Mapping[str, Any]] = lambda _: {}
    causal: bool = False
    differs: str = ""

    @property
    def name(self) -> str:
        """Name of the peer's package, model key and direction, unique among pairs."""
        return f"{self.package}/{self.key}{'-causal' if self.causal else ''}"

    @property
    def version(self) -> str:
        """Version of the peer's package, empty if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""

    def layer(self, contender: str, sizes: Sizes) -> nn.Module:
        """Build the layer of a contender, which maps rows (1, N, E) to rows (1, N, E).

        ``contender`` is ``ours`` (lra-bench), ``theirs`` (the peer) or ``floor`` (projections only). Raises
        ``UserError`` if the package of the peer is not installed.
        """
        if contender == "floor":
            return Projections(sizes.width)
        if contender == "ours":
            return MixerWithContext(self.mixer(sizes), sizes.length)
        if not self.version:
            raise UserError(f"{self.package} is not installed: {install_command('peers')}")
        return self.theirs(sizes)

    def mixer(self, sizes: Sizes) -> Mixer:
        """Build the mixer of the model file with the options of the pair."""
        file = files("lra_bench.conf.model") / f"{self.key}.yaml"
        node = {**yaml.safe_load(file.read_text(encoding="utf-8"))["model"]["mixer"], **self.options(sizes)}
        given = {"width": sizes.width, "heads": sizes.heads, "max_length": sizes.length, "causal": self.causal}
        return build(node, Mixer, "model.mixer", **given)


class MixerWithContext(nn.Module):
    """A mixer with a fixed context, which is otherwise provided by the backbone."""

    def __init__(self, mixer: Mixer, length: int) -> None:
        super().__init__()
        self.mixer, self.context = mixer, Context(None, torch.arange(length), train_length=length)
        name_modules(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (B, N, E) to rows (B, N, E)."""
        y, _ = self.mixer(x, self.context)
        return y


class Projections(nn.Module):
    """The floor: projections of queries, keys, values and output, without attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (B, N, E) to rows (B, N, E)."""
        y: Tensor = self.output(self.query(x) + self.key(x) + self.value(x))
        return y


class First(nn.Module):
    """A layer of which only the first output is used, with an output projection of width ``project`` if not zero."""

    def __init__(self, layer: nn.Module, *, project: int = 0, **given: Any) -> None:
        super().__init__()
        self.layer, self.given = layer, given
        self.output = nn.Linear(project, project) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map rows (B, N, E) to rows (B, N, E)."""
        y: Tensor = self.output(self.layer(x, **self.given)[0])
        return y
