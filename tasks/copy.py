"""Copy: repeat the symbols at the start of the sequence, in order, after a separator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from .options import at_least
from .synthetic.base import Common, tagging
from .synthetic.copied import CopyingTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.rows import Block


class CopyTask(CopyingTask):
    """The copying memory problem: reproduce symbols after a delay.

    An example with ``copied=3``, ``symbols=4``, ``length=12`` (A to D are symbols, · is the blank, | the separator)::

        input    B B C · · · · · | · · ·
        target   - - - - - - - - - B B C

    ``copied`` random symbols are followed by blanks, a separator and ``copied`` further blanks. The target at the k-th
    of these last blanks is the k-th symbol; all other positions (``-``) are not scored. Token ids: 1 is the blank, 2
    the separator, the symbols follow.

    With ``copied=None`` the symbols fill the sequence: (``length`` − 1) // 2 symbols, so that longer sequences require
    more memory. With a fixed ``copied``, longer sequences differ only in the delay.

    All examples of a length have the same layout: the source of a target is always ``length`` − ``copied`` positions
    before it. At another length the symbols are the same and this distance changes, so a system that has learned a
    fixed distance fails.

    Floors (baselines without a model): ``majority``; ``commonest_symbol``, the most frequent symbol of the example at
    every position.

    Source: Hochreiter and Schmidhuber 1997, as in Arjovsky et al. 2016, arXiv 1511.06464, with ``copied`` = 10 and
    ``symbols`` = 8. Deviates: positions whose target would be a blank are not scored.
    """

    citation = (
        "after Hochreiter and Schmidhuber 1997, Long Short-Term Memory, Neural Computation 9; "
        "Arjovsky et al. 2016, Unitary Evolution Recurrent Neural Networks, arXiv 1511.06464"
    )

    def __init__(
        self, *, length: int = 64, symbols: int = 16, copied: int | None = None, **common: Unpack[Common]
    ) -> None:
        at_least(2, symbols=symbols)
        if copied is not None:
            at_least(1, copied=copied)
        self.symbols, self.copied = symbols, copied
        self.spec = tagging("copy", length, symbols + 2, symbols)
        super().__init__(**common)

    @property
    def copied_ids(self) -> tuple[int, int]:
        """The smallest token id of a symbol, and the number of these ids."""
        from .synthetic.drawing import FIRST_COPIED

        return FIRST_COPIED, self.symbols

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from .synthetic.drawing import draw_copies
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        draw_copies(np.uint64(key), first, self._copied(length), self.symbols, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        A valid example consists of ``copied`` symbols, blanks, one separator and ``copied`` blanks.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import BLANK, FIRST_COPIED, SEPARATOR
        from .synthetic.rows import Block

        tokens = block.tokens
        copied = self._copied(tokens.shape[1])
        symbols = tokens[:, :copied] - FIRST_COPIED
        layout = np.full(tokens.shape[1] - copied, BLANK)
        layout[-copied - 1] = SEPARATOR
        valid = ((symbols >= 0) & (symbols < self.symbols)).all(axis=1)
        valid &= (tokens[:, copied:] == layout).all(axis=1)
        targets = np.full(tokens.shape, NOT_SCORED)
        targets[:, -copied:] = symbols
        return Block(tokens, targets), valid

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the ``distance`` of each target from the symbol that it repeats, equal for all of them, (T,)."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        length = block.tokens.shape[1]
        scored = int((block.targets != NOT_SCORED).sum())
        return {"distance": np.full(scored, length - self._copied(length))}

    def _copied(self, length: int) -> int:
        return self.copied or (length - 1) // 2
