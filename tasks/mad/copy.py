"""Selective copying of MAD: repeat the symbols between blanks, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ..options import at_least
from ..synthetic.base import Common, tagging
from ..synthetic.copied import CopyingTask
from .next_token import CITATION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.rows import Block


class MadCopy(CopyingTask):
    """Selective copying of MAD: find the symbols among blanks and reproduce them in order.

    An example with ``copied=3``, ``symbols=6``, ``length=12`` (A to D are symbols, · is the blank, | the marker)::

        input    · · B B · · · C | · · ·
        target   - - - - - - - - - B B C

    Each blank stands before a random one of the ``copied`` random symbols, so that the last symbol is always directly
    before the marker. As many blanks as symbols follow the marker. The target at the k-th of these is the k-th symbol;
    all other places (``-``) are not scored. Of the ``symbols`` the last but one is the blank and the last the marker;
    classes are all symbols, and token ids are symbols plus 1. Longer sequences have more blanks.

    Floors (baselines without a model): ``majority``; ``commonest_symbol``, the most frequent symbol of the example at
    every place.

    Source: Poli et al. 2024 (MAD), arXiv 2403.17844, and athms/mad-lab@0f49a45:mad/data/instances.py. The defaults are
    its baseline; it varies symbols (32, 64, 128), length (512, 1,024), training rows (6,400 to 800) and ``copied`` (32,
    64, 96). In ``SelectiveCopyTask`` all sets of places have the same probability. Deviates: no example occurs twice.
    The code averages the accuracies of the classes, here all targets have the same weight.
    """

    citation = CITATION
    copied: int

    def __init__(self, *, length: int = 256, symbols: int = 16, copied: int = 16, **common: Unpack[Common]) -> None:
        at_least(4, symbols=symbols)
        at_least(1, copied=copied)
        self.symbols, self.copied = symbols, copied
        self.spec = tagging("mad_copy", length, symbols, symbols, chance=1 / (symbols - 2))
        super().__init__(**common)

    @property
    def copied_ids(self) -> tuple[int, int]:
        """The smallest token id of a symbol that is copied, and the number of these ids."""
        return 1, self.symbols - 2

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from ..synthetic.rows import unfilled
        from .drawing import draw_copies

        block = unfilled(self.spec, count, length)
        draw_copies(np.uint64(key), first, self.symbols - 2, self.copied, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        A valid example consists of ``copied`` symbols among blanks, the last of them at the end, the marker and
        ``copied`` blanks.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import Block

        shown, blank = self.shown(block.tokens), self.symbols - 1
        marker = block.tokens.shape[1] - self.copied - 1
        valid = (shown.sum(axis=1) == self.copied) & shown[:, marker - 1]
        valid &= (block.tokens[:, marker] == blank + 1) & (block.tokens[:, marker + 1 :] == blank).all(axis=1)
        valid &= (shown | (block.tokens == blank))[:, :marker].all(axis=1)
        targets = np.full(block.tokens.shape, NOT_SCORED)
        copies = block.tokens[valid][shown[valid]].astype(np.int64) - 1
        targets[valid, marker + 1 :] = copies.reshape(-1, self.copied)
        return Block(block.tokens, targets), valid

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the ``distance`` of each target from the symbol that it repeats, (T,)."""
        import numpy as np

        length = block.tokens.shape[1]
        places = np.nonzero(self.shown(block.tokens))[1].reshape(-1, self.copied)
        return {"distance": (np.arange(length - self.copied, length) - places).reshape(-1)}
