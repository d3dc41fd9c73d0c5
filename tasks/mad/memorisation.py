"""Memorisation of MAD: predict the value of each key, which is the same in all examples."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.data.digest import settings_digest

from ..options import at_least
from ..synthetic.base import GENERATOR_VERSION, Common, SyntheticTask, tagging
from .next_token import CITATION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.floors import Rule
    from ..synthetic.rows import Block


class MadMemorisation(SyntheticTask):
    """Memorisation of MAD: predict the value of each key from a map that is the same in all examples.

    An example with ``symbols=9``, ``length=8`` (a to d are keys, W to Z values, | is the marker)::

        input    b | d | b | a |
        target   - Y - W - Y - Z

    Each random key is followed by the marker, the last of the ``symbols``, at which the value of the key is scored.
    Different keys have different values. The map is random, a function of ``symbols`` and ``seed``, and never shown:
    it must be learned from the targets of training. Half of the other symbols are keys and half values; classes are all
    symbols, and token ids are symbols plus 1. Longer sequences have more keys, with the same map.

    Floors (baselines without a model): ``majority``; ``map_prior``, a random value of the map.

    Source: Poli et al. 2024 (MAD), arXiv 2403.17844, and athms/mad-lab@0f49a45:mad/data/instances.py. The defaults are
    its baseline, with 256 training rows; it varies symbols (512 to 8,192). Deviates: no example occurs twice. The code
    averages the accuracies of the classes, here all targets have the same weight.
    """

    citation = CITATION

    def __init__(self, *, length: int = 32, symbols: int = 256, **common: Unpack[Common]) -> None:
        at_least(5, symbols=symbols)
        self.symbols, self.keys = symbols, (symbols - 1) // 2
        self.spec = tagging("mad_memorisation", length, symbols, symbols, chance=1 / self.keys)
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``symbols``."""
        return {"symbols": self.symbols}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason if ``length`` is odd or below 2, otherwise None."""
        return None if length >= 2 and length % 2 == 0 else "an example needs an even number of tokens, at least 2"

    @cached_property
    def _value_of(self) -> NDArray[Any]:
        """Value of each key, (K,)."""
        import numpy as np

        from .drawing import draw_map

        values = np.empty(self.symbols - 1 - self.keys, dtype=np.int64)
        key = settings_digest(GENERATOR_VERSION, self.spec.name, "map", self.settings(), self.seed)
        draw_map(np.uint64(int(key, 16)), values)
        return self.keys + values[: self.keys]

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from ..synthetic.rows import unfilled
        from .drawing import draw_known

        block = unfilled(self.spec, count, length)
        draw_known(np.uint64(key), first, self._value_of, self.symbols - 1, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens and the map, and whether each example is valid, (R,).

        In a valid example each key is followed by the marker.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import Block

        keys, targets = block.tokens[:, ::2].astype(np.int64) - 1, np.full(block.tokens.shape, NOT_SCORED)
        valid = ((keys >= 0) & (keys < self.keys)).all(axis=1) & (block.tokens[:, 1::2] == self.symbols).all(axis=1)
        targets[:, 1::2] = self._value_of[np.clip(keys, 0, self.keys - 1)]
        return Block(block.tokens, targets), valid

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``map_prior``: a random value of the map."""
        import numpy as np

        return {"map_prior": lambda block: np.full(block.targets.shape, 1 / self.keys)}
