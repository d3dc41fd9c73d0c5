"""Reverse and sort: the answer contains the symbols of the source in another order."""

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


class Rewriting(GenerationTask):
    """Base class of tasks whose answer contains the symbols of the source, so that both have the same length.

    Floors: ``majority``; ``source``, the source itself.
    """

    def settings(self) -> dict[str, Any]:
        """Return ``symbols``."""
        return {"symbols": self.symbols}

    def longest(self, length: int) -> int:
        """Return the largest number of symbols in a source."""
        return (length - 1) // 2

    def sources(self, drawn: NDArray[Any], sizes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first symbols that were drawn."""
        return drawn, sizes

    def valid(self, sources: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
        """Return which sources consist of at least one known symbol, (R,)."""
        import numpy as np

        known = (sources >= 0) & (sources < self.symbols)
        beyond = np.arange(sources.shape[1]) >= lengths[:, None]
        return np.asarray((known | beyond).all(axis=1) & (lengths > 0))

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``source``: the source as the answer."""
        return {"source": self._source}

    def _source(self, block: Block) -> NDArray[Any]:
        """Return whether each target (R, N) is the symbol of the source at its place, or the end of as many symbols."""
        import numpy as np

        lengths = (block.tokens == SEPARATOR).argmax(axis=1)[:, None]
        after = np.arange(block.tokens.shape[1]) - lengths
        copied = np.take_along_axis(block.tokens, np.clip(after, 0, block.tokens.shape[1] - 1), axis=1) - FIRST
        return np.where(after < lengths, copied, self.symbols) == block.targets


class Reverse(Rewriting):
    """Generate the symbols of the source from the last to the first.

    A row is ``B A C | C A B``: a source, a separator, and the answer, which is followed by an end and blanks.
    Sources have (n + 1) // 2 to n = (``length`` − 1) // 2 of ``symbols`` symbols. The score is the share of the first
    ``decoded`` test examples whose generated answer and end are entirely correct.

    Floors: ``majority``, always the most frequent class; ``source``, the source itself as the answer.

    After the task of the same name in Delétang et al. 2022, arXiv 2207.02098 (Grefenstette et al. 2015, arXiv
    1506.02516). Deviates from both: an end follows the answer, and the score is that of greedy decoding.
    """

    citation = "after Delétang et al. 2022, Neural Networks and the Chomsky Hierarchy, arXiv 2207.02098"

    def __init__(self, *, length: int = 33, symbols: int = 16, decoded: int = 500, **common: Unpack[Common]) -> None:
        super().__init__("reverse", length=length, symbols=symbols, decoded=decoded, **common)

    def answers(self, sources: NDArray[Any], lengths: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the symbols from the last to the first."""
        import numpy as np

        places = lengths[:, None] - 1 - np.arange(sources.shape[1])
        return np.take_along_axis(sources, np.maximum(places, 0), axis=1), lengths, self.valid(sources, lengths)


class Sort(Rewriting):
    """Generate the symbols of the source from the smallest to the largest.

    A row is ``B A C | A B C``: a source, a separator, and the answer, which is followed by an end and blanks.
    Sources have (n + 1) // 2 to n = (``length`` − 1) // 2 of ``symbols`` symbols. The score is the share of the first
    ``decoded`` test examples whose generated answer and end are entirely correct.

    Floors: ``majority``, always the most frequent class; ``source``, the source itself as the answer.

    After the task bucket sort in Delétang et al. 2022, arXiv 2207.02098. Deviates: an end follows the answer, and the
    score is that of greedy decoding.
    """

    citation = "after Delétang et al. 2022, Neural Networks and the Chomsky Hierarchy, arXiv 2207.02098"

    def __init__(self, *, length: int = 33, symbols: int = 16, decoded: int = 500, **common: Unpack[Common]) -> None:
        super().__init__("sort", length=length, symbols=symbols, decoded=decoded, **common)

    def answers(self, sources: NDArray[Any], lengths: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the sorted symbols."""
        import numpy as np

        beyond = np.arange(sources.shape[1]) >= lengths[:, None]
        return np.sort(np.where(beyond, self.symbols, sources), axis=1), lengths, self.valid(sources, lengths)
