"""Compression of MAD: decode every token of a sequence from the state of its last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ..options import at_least
from ..synthetic.base import Common, SyntheticTask, tagging
from .next_token import CITATION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.floors import Rule
    from ..synthetic.rows import Block


class MadCompression(SyntheticTask):
    """Compression of MAD: reproduce all tokens from the state of the last one.

    An example with ``symbols=5``, ``length=8`` (A to D are symbols, | is the marker)::

        input    C A A D B A D |
        target   C A A D B A D |

    Random symbols are followed by a marker, the last of the ``symbols``. The output head of the model receives only the
    state of the last token: a network of two layers decodes every token from this state, to which the sinusoids of the
    token's position are added. All tokens are scored, including the marker. Token ids are symbols plus 1. Longer
    sequences have more symbols, and so more to remember.

    Floors (baselines without a model): ``majority``; ``commonest_symbol``, the most frequent symbol of the example at
    every place, and the marker at the last one.

    Source: Poli et al. 2024 (MAD), arXiv 2403.17844, and athms/mad-lab@0f49a45:mad/data/instances.py. The defaults are
    its baseline; it varies symbols (32, 64, 128), length (64, 128, 256) and training rows (6,400 to 800). Deviates: no
    example occurs twice. The code averages the accuracies of the classes, here all targets have the same weight.
    """

    citation = CITATION

    def __init__(self, *, length: int = 32, symbols: int = 16, **common: Unpack[Common]) -> None:
        at_least(3, symbols=symbols)
        self.symbols = symbols
        self.spec = tagging("mad_compression", length, symbols, symbols, decodes_state=True)
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``symbols``."""
        return {"symbols": self.symbols}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason if ``length`` is below 2, otherwise None."""
        return None if length >= 2 else "an example needs at least 2 tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from ..synthetic.rows import unfilled
        from .drawing import draw_symbols

        block = unfilled(self.spec, count, length)
        draw_symbols(np.uint64(key), first, self.symbols - 1, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the tokens as targets, and whether each example consists of symbols and a marker at the end, (R,)."""
        import numpy as np

        from ..synthetic.rows import Block

        targets = block.tokens.astype(np.int64) - 1
        valid = (targets >= 0).all(axis=1) & (targets[:, :-1] < self.symbols - 1).all(axis=1)
        return Block(block.tokens, targets), valid & (targets[:, -1] == self.symbols - 1)

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the distances (T,) of the targets from the end of the example, which is 1 for the last token."""
        import numpy as np

        rows, length = block.tokens.shape
        return {"distance": np.tile(np.arange(length, 0, -1), rows)}

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``commonest_symbol``: the most frequent symbol of the example, the marker at the end."""
        return {"commonest_symbol": self._commonest}

    def _commonest(self, block: Block) -> NDArray[Any]:
        from ..synthetic.floors import commonest_symbol

        right = commonest_symbol(block, 1, self.symbols)
        right[:, -1] = 1
        return right
