"""Base class of tasks that copy symbols."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .base import SyntheticTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .floors import Rule
    from .pairs import Decisive
    from .rows import Block


class CopyingTask(SyntheticTask):
    """Base class of tasks whose targets, at the end of an example, are its symbols in their order.

    Attributes:
        symbols: The option ``symbols``.
        copied: Number of symbols in an example; None for as many as fit.
    """

    symbols: int
    copied: int | None

    @property
    @abstractmethod
    def copied_ids(self) -> tuple[int, int]:
        """The smallest token id of a symbol that is copied, and the number of these ids."""

    def settings(self) -> dict[str, Any]:
        """Return ``symbols`` and ``copied``."""
        return {"symbols": self.symbols, "copied": self.copied}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length if ``length`` is below it, otherwise None."""
        needed = 2 * (self.copied or 1) + 1
        return None if length >= needed else f"an example needs at least {needed:,} tokens"

    def shown(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return which tokens are symbols to copy."""
        first, ids = self.copied_ids
        found: NDArray[Any] = (tokens >= first) & (tokens < first + ids)
        return found

    def decisive(self, block: Block) -> Decisive:
        """Return the symbols to copy."""
        from .pairs import Decisive

        return Decisive(self.shown(block.tokens), *self.copied_ids)

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``commonest_symbol``: the most frequent symbol of the example at every position."""
        from .floors import commonest_symbol

        return {"commonest_symbol": lambda block: commonest_symbol(block, *self.copied_ids)}
