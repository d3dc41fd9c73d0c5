"""Copy: repeat the symbols at the front of the row, in order, after a separator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import TaskSpec

from .options import at_least
from .synthetic.base import Common, SyntheticTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.floors import Rule
    from .synthetic.rows import Block


class CopyTask(SyntheticTask):
    """``copied`` random symbols, blanks, a separator, and as many blanks again: the target at the k-th is symbol k.

    The copying memory problem of Hochreiter and Schmidhuber 1997 as in Arjovsky et al. 2016, arXiv 1511.06464, which
    has ``copied`` = 10 and ``symbols`` = 8. ``copied`` None fills the row: (length − 1) // 2 symbols, so that a longer
    row holds more to remember; a number leaves a longer row with a longer delay and nothing else. Ids: 1 blank,
    2 separator, then the symbols.

    All rows of a length have the same layout: a target's source always lies ``length`` − ``copied`` places before it.
    At another length the alphabet stays and that distance changes, so a system that learned the distance fails there.
    Deviates: blanks that nothing is copied to are not scored.
    """

    headline_floor = "commonest_symbol"
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
        self.spec = TaskSpec(
            name="copy",
            version="1",
            kind="tagging",
            direction="either",
            vocabulary_size=symbols + 3,
            classes=symbols,
            train_length=length,
            chance=1 / symbols,
        )
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """``symbols`` and ``copied``."""
        return {"symbols": self.symbols, "copied": self.copied}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or how long a row must be."""
        needed = 2 * (self.copied or 1) + 1
        return None if length >= needed else f"a row takes {needed:,} tokens or more"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Tokens (R, N) and targets (R, N)."""
        import numpy as np

        from .synthetic.drawing import draw_copies
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        draw_copies(np.uint64(key), first, self._copied(length), self.symbols, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Each symbol one distance further on; rows must be symbols, blanks, one separator and blanks."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import BLANK, FIRST_COPIED, SEPARATOR
        from .synthetic.rows import Block

        tokens = block.tokens
        copied = self._copied(tokens.shape[1])
        symbols = tokens[:, :copied] - FIRST_COPIED
        layout = np.full(tokens.shape[1] - copied, BLANK)
        layout[-copied - 1] = SEPARATOR
        well_formed = ((symbols >= 0) & (symbols < self.symbols)).all(axis=1)
        well_formed &= (tokens[:, copied:] == layout).all(axis=1)
        targets = np.full(tokens.shape, NOT_SCORED)
        targets[:, -copied:] = symbols
        return Block(tokens, targets), well_formed

    def shortcuts(self) -> Mapping[str, Rule]:
        """``commonest_symbol``: the one that the row holds most often, at every place."""
        from .synthetic.drawing import FIRST_COPIED
        from .synthetic.floors import commonest_symbol

        return {"commonest_symbol": lambda block: commonest_symbol(block, FIRST_COPIED, self.symbols)}

    def _copied(self, length: int) -> int:
        return self.copied or (length - 1) // 2
