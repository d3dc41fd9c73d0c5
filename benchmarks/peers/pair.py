"""What is compared: a mixer of ours and the layer of another package that computes the like, of one size."""

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
from lra_bench.contracts import UserError
from lra_bench.models.mixer import Context, Mixer, name_modules


@dataclass(frozen=True)
class Sizes:
    """What both layers of a pair have in common."""

    length: int
    width: int = 256
    heads: int = 4

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.width // self.heads


@dataclass(frozen=True)
class Pair:
    """A layer of another package, made by ``theirs``, and ours, by the ``key`` of its model file and ``options``.

    ``differs`` says in a phrase where the peer computes something else.
    """

    package: str
    key: str
    theirs: Callable[[Sizes], nn.Module]
    options: Callable[[Sizes], Mapping[str, Any]] = lambda _: {}
    causal: bool = False
    differs: str = ""

    @property
    def name(self) -> str:
        """The peer's package and what it is compared with, unique among pairs."""
        return f"{self.package}/{self.key}{'-causal' if self.causal else ''}"

    @property
    def version(self) -> str:
        """The version of the peer's package, empty where it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""

    def layer(self, whose: str, sizes: Sizes) -> nn.Module:
        """The layer of ``ours``, of ``theirs``, or their common ``floor``, from rows (1, N, E) to rows."""
        if whose == "floor":
            return Projections(sizes.width)
        if whose == "ours":
            return Ours(self.mixer(sizes), sizes.length)
        if not self.version:
            raise UserError(f"{self.package} is not installed: pip install '.[peers]'")
        return self.theirs(sizes)

    def mixer(self, sizes: Sizes) -> Mixer:
        """Our mixer as the model file has it, with the pair's options."""
        file = files("lra_bench.conf.model") / f"{self.key}.yaml"
        node = {**yaml.safe_load(file.read_text(encoding="utf-8"))["model"]["mixer"], **self.options(sizes)}
        given = {"width": sizes.width, "heads": sizes.heads, "max_length": sizes.length, "causal": self.causal}
        return build(node, Mixer, "model.mixer", **given)


class Ours(nn.Module):
    """A mixer without the context that only a stack knows."""

    def __init__(self, mixer: Mixer, length: int) -> None:
        super().__init__()
        self.mixer, self.context = mixer, Context(None, torch.arange(length), train_length=length)
        name_modules(self)

    def forward(self, x: Tensor) -> Tensor:
        """Rows (B, N, E) to rows."""
        y, _ = self.mixer(x, self.context)
        return y


class Projections(nn.Module):
    """The floor: queries, keys, values and the output are projected, and nothing is attended to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Rows (B, N, E) to rows."""
        y: Tensor = self.output(self.query(x) + self.key(x) + self.value(x))
        return y


class First(nn.Module):
    """A layer that returns more than rows, with an output projection where it has none."""

    def __init__(self, layer: nn.Module, *, project: int = 0, **given: Any) -> None:
        super().__init__()
        self.layer, self.given = layer, given
        self.output = nn.Linear(project, project) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Rows (B, N, E) to rows."""
        y: Tensor = self.output(self.layer(x, **self.given)[0])
        return y
