"""Needle: find a marker among random symbols and name the symbol behind it."""

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


class NeedleTask(SyntheticTask):
    """Random symbols, ``needles`` different markers among them, and at the end one of the markers again.

    The target at the last place is the symbol behind the marker that is repeated there. That symbol is drawn as all
    others are, so nothing but its place tells it apart. The asked marker's place is uniform over the row; the column
    ``depth`` keeps it, 0 at the front to 1 at the end. Ids: markers from 1 on, then symbols. After the passkey of
    Mohtashami and Jaggi 2023, arXiv 2305.16300, of which this is the abstract form.

    At another length needles and symbols stay, so that only the haystack grows.
    """

    citation = (
        "after Mohtashami and Jaggi 2023, Landmark Attention: Random-Access Infinite Context Length for Transformers, "
        "arXiv 2305.16300 (passkey retrieval)"
    )

    def __init__(self, *, length: int = 128, needles: int = 1, symbols: int = 16, **common: Unpack[Common]) -> None:
        at_least(1, needles=needles)
        at_least(2, symbols=symbols)
        self.needles, self.symbols = needles, symbols
        self.headline_floor = "commonest_symbol" if needles == 1 else "symbol_behind_a_marker"
        self.spec = TaskSpec(
            name="needle",
            version="1",
            kind="tagging",
            direction="either",
            vocabulary_size=1 + needles + symbols,
            classes=symbols,
            train_length=length,
            chance=1 / symbols,
        )
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """``needles`` and ``symbols``."""
        return {"needles": self.needles, "symbols": self.symbols}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or how long a row must be for needles to find room wherever the others lie."""
        needed = 3 * self.needles
        return None if length >= needed else f"a row takes {needed:,} tokens or more"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Tokens (R, N), targets (R, N), of which the last is scored, and ``depth`` (R,)."""
        import numpy as np

        from .synthetic.drawing import draw_needles
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length, depth=np.empty(count))
        draw_needles(
            *(np.uint64(key), first, self.needles, self.symbols),
            *(block.tokens, block.targets, block.extra["depth"]),
        )
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """The symbol behind the first occurrence of the last token; each marker must occur once before the end."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.rows import Block

        haystack, last = block.tokens[:, :-1], block.tokens[:, -1:]
        behind, well_formed = self._behind_markers(block)
        place = (haystack == last).argmax(axis=1)
        targets = np.full(block.tokens.shape, NOT_SCORED)
        targets[:, -1] = np.take_along_axis(block.tokens, place[:, None] + 1, axis=1)[:, 0] - self._first_symbol
        well_formed &= ((behind >= 0) & (behind < self.symbols)).all(axis=1)
        well_formed &= (haystack < self._first_symbol + self.symbols).all(axis=1)
        well_formed &= ((last > 0) & (last < self._first_symbol))[:, 0]
        return Block(block.tokens, targets, {"depth": place / max(haystack.shape[1] - 2, 1)}), well_formed

    def shortcuts(self) -> Mapping[str, Rule]:
        """``commonest_symbol`` of the row; with several needles also any ``symbol_behind_a_marker``."""
        from .synthetic.floors import commonest_symbol, one_of

        rules: dict[str, Rule] = {
            "commonest_symbol": lambda block: commonest_symbol(block, self._first_symbol, self.symbols)
        }
        if self.needles > 1:
            rules["symbol_behind_a_marker"] = lambda block: one_of(self._behind_markers(block)[0], block)
        return rules

    @property
    def _first_symbol(self) -> int:
        from .synthetic.drawing import FIRST_MARKER

        return FIRST_MARKER + self.needles

    def _behind_markers(self, block: Block) -> tuple[NDArray[Any], NDArray[Any]]:
        """The number of the symbol behind each marker (R, K), and whether each marker occurs once in the row (R,)."""
        import numpy as np

        haystack = block.tokens[:, :-1]
        once = np.ones(len(haystack), dtype=bool)
        behind = np.empty((len(haystack), self.needles), dtype=np.int64)
        for number in range(self.needles):
            hits = haystack == self._first_symbol - self.needles + number
            once &= hits.sum(axis=1) == 1
            behind[:, number] = np.take_along_axis(block.tokens, hits.argmax(axis=1)[:, None] + 1, axis=1)[:, 0]
        return behind - self._first_symbol, once
