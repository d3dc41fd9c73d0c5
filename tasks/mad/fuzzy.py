"""Fuzzy in-context recall of MAD: keys and values are short sequences of symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ..options import at_least
from ..synthetic.base import Common
from .next_token import NextTokenRecall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.rows import Block


class MadFuzzyRecall(NextTokenRecall):
    """Fuzzy in-context recall of MAD: predict the value of each key that was shown before, both of several symbols.

    An example with ``symbols=9``, ``length=15`` (a to d are keys, W to Z values, · is the filler)::

        input    · c a b Y X d b a Z c a b Y X
        target   - - - - - - - - - - - - Y X -

    Keys are sequences of 1 to ``key_symbols`` different symbols, values of 1 to ``value_symbols``; each number of
    symbols has the same probability, and so has each sequence of this number. The value of a key is random, and the
    same each time that the key is shown. The last pair is drawn first, and placed among the others, at a random place,
    unless its key occurs before. Fillers precede the pairs, which do not fill the sequence. Tests have keys of
    ``key_symbols`` symbols only and score all symbols of the value of a key that was shown before. In training the
    target is the next token at every place. Half of the symbols but the last, the filler, are keys and half values;
    classes are all symbols, and token ids are symbols plus 1. Longer sequences have more pairs.

    Floors (baselines without a model): ``majority``; ``value_shown``, a random one of the symbols of values shown so
    far, and ``commonest_value``, the most frequent of them.

    Source: Poli et al. 2024 (MAD), arXiv 2403.17844, and athms/mad-lab@0f49a45:mad/data/instances.py, with several
    queries. The defaults are its baseline; it varies symbols (32, 64, 128), length (256, 512, 1,024) and training rows
    (6,400 to 800). Deviates: the sequence contains the last symbol, which no target follows, and one filler less; an
    example in which the last pair was not shown before is drawn again; no example occurs twice in a split. The code
    averages the accuracies of the classes, here all targets have the same weight.
    """

    def __init__(
        self,
        *,
        length: int = 128,
        symbols: int = 16,
        key_symbols: int = 3,
        value_symbols: int = 3,
        **common: Unpack[Common],
    ) -> None:
        at_least(1, key_symbols=key_symbols, value_symbols=value_symbols)
        self.symbols, self.key_symbols, self.value_symbols = symbols, key_symbols, value_symbols
        self.declare("mad_fuzzy", length, symbols, 1, max(key_symbols, value_symbols))
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``symbols``, ``key_symbols`` and ``value_symbols``."""
        return {"symbols": self.symbols, "key_symbols": self.key_symbols, "value_symbols": self.value_symbols}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length if ``length`` is below it, otherwise None."""
        needed = 2 * (self.key_symbols + self.value_symbols) + 1
        return None if length >= needed else f"an example needs at least {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return test examples ``first`` to ``first + count`` of the stream ``key``: tokens (R, N), targets (R, N)."""
        return self._draw(key, first, count, length, self.key_symbols)

    def draw_in(self, split: str, key: int, first: int, count: int, length: int) -> Block:
        """Return examples of a split; in train, keys have any number of symbols."""
        shortest = 1 if split == "train" else self.key_symbols
        return self.in_split(self._draw(key, first, count, length, shortest), split)

    def _draw(self, key: int, first: int, count: int, length: int, shortest: int) -> Block:
        import numpy as np

        from ..synthetic.rows import unfilled
        from .drawing import draw_fuzzy

        block = unfilled(self.spec, count, length)
        sizes = shortest, self.key_symbols, self.value_symbols
        draw_fuzzy(np.uint64(key), first, self.keys, self.values, *sizes, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        A valid example consists of fillers, then keys and values of possible numbers of symbols, of which none occurs
        twice; repeated keys have the same value, and the last key is repeated.
        """
        import numpy as np

        from ..synthetic.rows import Block
        from .reading import read_fuzzy

        targets, valid = np.empty(block.tokens.shape, dtype=np.int64), np.empty(len(block.tokens), dtype=bool)
        sizes = self.keys, self.values, self.key_symbols, self.value_symbols
        read_fuzzy(*sizes, block.tokens, targets, valid)
        return Block(block.tokens, targets), valid
