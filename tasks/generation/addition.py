"""Addition: the answer is the sum of two numbers, digit by digit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ..synthetic.base import Common
from .base import GenerationTask
from .tokens import FIRST, SEPARATOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.floors import Rule
    from ..synthetic.rows import Block

BASE = 10


class Addition(GenerationTask):
    """Generate the sum of two decimal numbers of n digits each, which are separated by a plus.

    A row is ``1 9 + 0 3 | 0 2 2``: a source, a separator, and the answer, which is followed by an end and blanks. The
    numbers have (m + 1) // 2 to m = (``length`` − 3) // 3 digits. The score is the share of the first ``decoded`` test
    examples whose generated answer and end are entirely correct.

    Numbers may begin with zeros, and the sum has n + 1 digits. Digits are written from the most significant one to the
    least, those of the sum with ``reversed_sum`` in the opposite order, in which each digit depends on a carry that was
    computed before it (Lee et al. 2023, arXiv 2307.03381). After Zaremba and Sutskever 2014, arXiv 1410.4615; deviates:
    both numbers have the same number of digits.

    Floors: ``majority``, always the most frequent class; ``without_carries``, the sums of the digits modulo ten.
    """

    citation = "after Zaremba and Sutskever 2014, Learning to Execute, arXiv 1410.4615"

    def __init__(
        self, *, length: int = 33, reversed_sum: bool = False, decoded: int = 500, **common: Unpack[Common]
    ) -> None:
        self.reversed_sum = reversed_sum
        super().__init__("addition", length=length, symbols=BASE, others=1, decoded=decoded, **common)

    def settings(self) -> dict[str, Any]:
        """Return ``reversed_sum``."""
        return {"reversed_sum": self.reversed_sum}

    def longest(self, length: int) -> int:
        """Return the largest number of digits n: n digits, plus, n digits, separator, n + 1 digits."""
        return (length - 3) // 3

    def sources(self, drawn: NDArray[Any], sizes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both numbers with a plus between them."""
        import numpy as np

        sources = np.zeros((len(drawn), drawn.shape[1] + 1), dtype=np.int64)
        places = np.arange(sources.shape[1])
        sources[:, :-1] = drawn
        after = places > sizes[:, None]
        sources[after] = np.pad(drawn, ((0, 0), (1, 0)))[after]
        sources[np.arange(len(drawn)), sizes] = BASE
        return sources, 2 * sizes + 1

    def answers(self, sources: NDArray[Any], lengths: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the digits of the sum."""
        import numpy as np

        numbers, digits, valid = self._numbers(sources, lengths)
        sums = np.pad(numbers.sum(axis=1), ((0, 0), (0, 1)))
        for place in range(sums.shape[1] - 1):
            sums[:, place + 1] += sums[:, place] // BASE
        return self._written(sums % BASE, digits + 1), digits + 1, valid

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``without_carries``."""
        return {"without_carries": self._without_carries}

    def _without_carries(self, block: Block) -> NDArray[Any]:
        """Return whether each target (R, N) is the digit of a sum without carries, or the end."""
        import numpy as np

        ends = (block.tokens == SEPARATOR).argmax(axis=1)
        sources = np.where(np.arange(block.tokens.shape[1]) < ends[:, None], block.tokens.astype(np.int64) - FIRST, 0)
        numbers, digits, _ = self._numbers(sources, ends)
        places = np.pad(numbers.sum(axis=1) % BASE, ((0, 0), (0, 1)))
        after = np.arange(block.tokens.shape[1]) - ends[:, None]
        written = self._written(places, digits + 1)
        guesses = np.take_along_axis(written, np.clip(after, 0, written.shape[1] - 1), axis=1)
        return np.where(after <= digits[:, None], guesses, BASE) == block.targets

    def _numbers(self, sources: NDArray[Any], lengths: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the digits of both numbers (R, 2, W) from the least significant one on, filled with zeros.

        Also return the number of digits of each number (R,), and which sources are valid (R,).
        """
        import numpy as np

        digits = np.maximum((lengths - 1) // 2, 1)
        places = np.arange(sources.shape[1])
        shown = places < lengths[:, None]
        is_plus = shown & (places == digits[:, None])
        is_digit = (sources >= 0) & (sources < BASE)
        valid = (lengths == 2 * digits + 1) & (np.where(is_plus, sources == BASE, is_digit) | ~shown).all(axis=1)
        from_least = np.arange(int(digits.max(initial=1)))
        inside = from_least < digits[:, None]
        read = [
            np.where(inside, np.take_along_axis(sources, np.maximum(last[:, None] - from_least, 0), axis=1), 0)
            for last in (digits - 1, 2 * digits)
        ]
        return np.stack(read, axis=1), digits, valid

    def _written(self, places: NDArray[Any], digits: NDArray[Any]) -> NDArray[Any]:
        """Return digits (R, W), given from the least significant one on, in the order of the answer."""
        import numpy as np

        if self.reversed_sum:
            return places
        return np.take_along_axis(places, np.maximum(digits[:, None] - 1 - np.arange(places.shape[1]), 0), axis=1)
