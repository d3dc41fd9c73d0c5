"""Selective copying: repeat symbols that stand at random positions among blanks, in order, after a separator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .options import at_least
from .synthetic.base import Common, tagging
from .synthetic.copied import CopyingTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.rows import Block


class SelectiveCopyTask(CopyingTask):
    """Selective copying: find the symbols among blanks and reproduce them in order.

    An example with ``copied=3``, ``symbols=4``, ``length=12`` (A to D are symbols, · is the blank, | the separator)::

        input    · B · · B · C · | · · ·
        target   - - - - - - - - - B B C

    ``copied`` random symbols stand at random positions before the separator, all sets of positions with the same
    probability; the other positions contain blanks. After the separator follow ``copied`` blanks. The target at the
    k-th of these is the k-th symbol; all other positions (``-``) are not scored. Token ids are those of ``CopyTask``: 1
    is the blank, 2 the separator, the symbols follow.

    The distance from a symbol to its target differs between examples, so an operation with the same weights at all
    positions, such as a convolution, cannot solve the task: what is stored must depend on the input. ``CopyTask`` with
    the same ``copied`` is the control, in which the distance is fixed. At another length ``copied`` and ``symbols`` are
    the same; only the number of blanks changes.

    Floors (baselines without a model): ``majority``; ``commonest_symbol``, the most frequent symbol of the example at
    every position.

    Source: Gu and Dao 2023 (Mamba), arXiv 2312.00752, with 16 symbols at random positions in 4,096 tokens. Deviates:
    the symbols are repeated after one separator among blanks (in the paper's figure at coloured positions of the
    output), and only these targets are scored.
    """

    citation = (
        "after Gu and Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, arXiv 2312.00752"
    )

    copied: int

    def __init__(self, *, length: int = 128, symbols: int = 16, copied: int = 8, **common: Unpack[Common]) -> None:
        at_least(2, symbols=symbols)
        at_least(1, copied=copied)
        self.symbols, self.copied = symbols, copied
        self.spec = tagging("selective_copy", length, symbols + 2, symbols)
        super().__init__(**common)

    @property
    def copied_ids(self) -> tuple[int, int]:
        """The smallest token id of a symbol, and the number of these ids."""
        from .synthetic.drawing import FIRST_COPIED

        return FIRST_COPIED, self.symbols

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from .synthetic.drawing import draw_scattered_copies
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        draw_scattered_copies(np.uint64(key), first, self.copied, self.symbols, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        A valid example consists of ``copied`` symbols among blanks, one separator and ``copied`` blanks.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import BLANK, FIRST_COPIED, SEPARATOR
        from .synthetic.rows import Block

        tokens, separator = block.tokens, block.tokens.shape[1] - self.copied - 1
        front = tokens[:, :separator]
        shown = self.shown(front)
        valid = (shown.sum(axis=1) == self.copied) & (shown | (front == BLANK)).all(axis=1)
        valid &= (tokens[:, separator] == SEPARATOR) & (tokens[:, separator + 1 :] == BLANK).all(axis=1)
        targets = np.full(tokens.shape, NOT_SCORED)
        targets[valid, separator + 1 :] = front[valid][shown[valid]].reshape(-1, self.copied) - FIRST_COPIED
        return Block(tokens, targets), valid
