"""Needle: find a marker among random symbols and predict the symbol after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from .options import at_least
from .synthetic.base import Common, SyntheticTask, tagging

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.floors import Rule
    from .synthetic.pairs import Decisive
    from .synthetic.rows import Block


class NeedleTask(SyntheticTask):
    """Needle in a haystack: predict the symbol that follows a marker.

    An example with ``needles=2``, ``symbols=6``, ``length=10`` (A to F are symbols, 1 and 2 are markers)::

        input    C C D F 1 C E 2 B 2
        target   - - - - - - - - - B

    Random symbols contain ``needles`` different markers, each once; the last token repeats one of them. The target at
    the last position is the symbol after the first occurrence of that marker; all other positions (``-``) are not
    scored. This symbol is sampled like all others, so only its position identifies it. The position of the queried
    marker is uniform; the column ``depth`` stores it, from 0 (start) to 1 (end). Token ids: the markers from 1 on, then
    the symbols.

    At another length ``needles`` and ``symbols`` are the same; only the number of other symbols changes.

    Floors (baselines without a model): ``majority``; ``commonest_symbol``, the most frequent symbol of the example;
    with several needles also ``symbol_behind_a_marker``, a random one of the symbols that follow markers.

    Source: an abstract form of passkey retrieval (Mohtashami and Jaggi 2023, arXiv 2305.16300).
    """

    citation = (
        "after Mohtashami and Jaggi 2023, Landmark Attention: Random-Access Infinite Context Length for Transformers, "
        "arXiv 2305.16300 (passkey retrieval)"
    )

    def __init__(self, *, length: int = 128, needles: int = 1, symbols: int = 16, **common: Unpack[Common]) -> None:
        at_least(1, needles=needles)
        at_least(2, symbols=symbols)
        self.needles, self.symbols = needles, symbols
        self.spec = tagging("needle", length, needles + symbols, symbols)
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``needles`` and ``symbols``."""
        return {"needles": self.needles, "symbols": self.symbols}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length if ``length`` is below it, otherwise None.

        From that length on, every marker fits wherever the others are.
        """
        needed = 3 * self.needles
        return None if length >= needed else f"an example needs at least {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return examples ``first`` to ``first + count`` of the stream ``key``.

        Tokens (R, N), targets (R, N), of which only the last is scored, and the column ``depth`` (R,).
        """
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
        """Return targets and depth computed from the tokens alone, and whether each example is valid, (R,).

        In a valid example each marker occurs once before the last position and is followed by a symbol.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.rows import Block

        haystack, last = block.tokens[:, :-1], block.tokens[:, -1:]
        after, valid = self._after_markers(block)
        place = (haystack == last).argmax(axis=1)
        targets = np.full(block.tokens.shape, NOT_SCORED)
        targets[:, -1] = np.take_along_axis(block.tokens, place[:, None] + 1, axis=1)[:, 0] - self._first_symbol
        valid &= ((after >= 0) & (after < self.symbols)).all(axis=1)
        valid &= (haystack < self._first_symbol + self.symbols).all(axis=1)
        valid &= ((last > 0) & (last < self._first_symbol))[:, 0]
        return Block(block.tokens, targets, {"depth": place / max(haystack.shape[1] - 2, 1)}), valid

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the ``distance`` of each target from the symbol after the marker, (T,)."""
        from .synthetic.sources import distance_after_first

        return {"distance": distance_after_first(block)}

    def decisive(self, block: Block) -> Decisive:
        """Return the symbol after the queried marker."""
        import numpy as np

        from .synthetic.pairs import Decisive

        where = np.zeros(block.tokens.shape, dtype=bool)
        where[:, 1:-1] = block.tokens[:, :-2] == block.tokens[:, -1:]
        return Decisive(where, self._first_symbol, self.symbols)

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``commonest_symbol`` and, with several needles, ``symbol_behind_a_marker``."""
        from .synthetic.floors import commonest_symbol, one_of

        rules: dict[str, Rule] = {
            "commonest_symbol": lambda block: commonest_symbol(block, self._first_symbol, self.symbols)
        }
        if self.needles > 1:
            rules["symbol_behind_a_marker"] = lambda block: one_of(self._after_markers(block)[0], block)
        return rules

    @property
    def _first_symbol(self) -> int:
        from .synthetic.drawing import FIRST_MARKER

        return FIRST_MARKER + self.needles

    def _after_markers(self, block: Block) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the number of the symbol after each marker (R, K), and whether each marker occurs once (R,)."""
        import numpy as np

        haystack = block.tokens[:, :-1]
        once = np.ones(len(haystack), dtype=bool)
        after = np.empty((len(haystack), self.needles), dtype=np.int64)
        for number in range(self.needles):
            hits = haystack == self._first_symbol - self.needles + number
            once &= hits.sum(axis=1) == 1
            after[:, number] = np.take_along_axis(block.tokens, hits.argmax(axis=1)[:, None] + 1, axis=1)[:, 0]
        return after - self._first_symbol, once
