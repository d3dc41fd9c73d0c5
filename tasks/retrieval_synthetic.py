"""Synthetic retrieval: tell whether two documents of the same words, in another order, hide the same key."""

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


class RetrievalSynthetic(SyntheticTask):
    """Two documents, encoded apart: label 1 where they hide the same one of ``keys`` symbols, in half of the rows.

    Our own; it has the form of LRA's Retrieval and none of its text. A document holds ``marks`` times the mark, each
    followed by the document's key; random symbols lie between. One document alone says nothing of the label. Where
    ``balanced``, all documents of a length are permutations of one and the same multiset of tokens, so that counting
    tokens says nothing either; otherwise symbols are drawn independently, and the key is somewhat commoner than the
    others: the floor ``bag_of_tokens`` shows how far that leads. Ids: 1 mark, then the symbols. ``length`` is that of
    each document.

    At another length keys and marks stay, so that only what lies between them grows; unbalanced, the key's surplus
    thins out with it.
    """

    headline_floor = "bag_of_tokens"
    citation = (
        "lra-bench, a stand-in without text for the Retrieval task of Tay et al. 2021, "
        "Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
    )

    def __init__(
        self, *, length: int = 128, keys: int = 8, marks: int = 8, balanced: bool = True, **common: Unpack[Common]
    ) -> None:
        at_least(2, keys=keys)
        at_least(1, marks=marks)
        self.keys, self.marks, self.balanced = keys, marks, balanced
        self.spec = TaskSpec(
            name="retrieval_synthetic",
            version="1",
            kind="matching",
            direction="either",
            vocabulary_size=keys + 2,
            classes=2,
            train_length=length,
            chance=0.5,
        )
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """``keys``, ``marks`` and ``balanced``."""
        return {"keys": self.keys, "marks": self.marks, "balanced": self.balanced}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or how long a document must be; balanced, every symbol occurs at least as often as there are marks."""
        needed = self.marks * (self.keys + 1 if self.balanced else 2)
        return None if length >= needed else f"a document takes {needed:,} tokens or more"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Tokens (R, 2, N) and targets (R,)."""
        import numpy as np

        from .synthetic.drawing import draw_pairs
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        draw_pairs(np.uint64(key), first, self.keys, self.marks, self.balanced, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Whether the first marks of both documents are followed by the same symbol; all their marks must be, and
        all documents must hold the same tokens where that is the rule.
        """
        import numpy as np

        from .synthetic.drawing import FIRST_SYMBOL, MARK
        from .synthetic.rows import Block, count_tokens

        tokens = block.tokens
        length = tokens.shape[2]
        marked = tokens == MARK
        keys = np.take_along_axis(np.roll(tokens, -1, axis=2), marked.argmax(axis=2)[..., None], axis=2)
        well_formed = ~marked[..., -1].any(axis=1)
        well_formed &= ((np.roll(tokens, -1, axis=2) == keys) | ~marked).all(axis=(1, 2))
        well_formed &= ((tokens >= MARK) & (tokens < FIRST_SYMBOL + self.keys)).all(axis=(1, 2))
        well_formed &= (marked.sum(axis=2) == self.marks).all(axis=1)
        others = FIRST_SYMBOL + np.arange(length - self.marks) % self.keys
        bag = np.bincount(np.append(others, np.full(self.marks, MARK)))
        if self.balanced:
            well_formed &= (count_tokens(tokens, FIRST_SYMBOL + self.keys) == bag).all(axis=(1, 2))
        return Block(tokens, (keys[:, 0, 0] == keys[:, 1, 0]).astype(np.int64)), well_formed

    def shortcuts(self) -> Mapping[str, Rule]:
        """``bag_of_tokens``: a linear rule on how often both documents hold each token."""
        from .synthetic.drawing import FIRST_SYMBOL
        from .synthetic.floors import bag_of_tokens

        return {"bag_of_tokens": bag_of_tokens(self.blocks("train"), self.keys + FIRST_SYMBOL)}
