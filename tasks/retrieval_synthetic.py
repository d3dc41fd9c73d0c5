"""Synthetic retrieval: decide whether two documents contain the same key."""

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
    """Whether two separately encoded documents contain the same key: two classes.

    An example with ``keys=3``, ``marks=2``, ``length=10`` and label 0 (A to C are symbols, ! is the mark)::

        document 1   A C ! B B C ! B A A     (key B)
        document 2   C B A B B ! A C ! A     (key A)

    A document contains the mark ``marks`` times, always followed by the document's key, which is one of ``keys``
    symbols; random symbols are in between. The label is 1 if both documents have the same key, which is so in half of
    the examples. One document alone contains no information about the label. Token ids: 1 is the mark, the symbols
    follow. ``length`` is the length of each document.

    With ``balanced``, all documents of a length are permutations of the same multiset of tokens, so that token counts
    contain no information either. Otherwise symbols are sampled independently, and the key is somewhat more frequent
    than the other symbols; the floor ``bag_of_tokens`` measures how much of the task this solves.

    At another length ``keys`` and ``marks`` are the same; only the number of symbols in between changes. If the
    documents are not balanced, the excess frequency of the key decreases with the length.

    Floors (baselines without a model): ``majority``; ``bag_of_tokens``, softmax regression on the token counts of both
    documents.

    Source: lra-bench. The task has the form of the Retrieval task of Long Range Arena (Tay et al. 2021, arXiv
    2011.04006), without its text.
    """

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
        """Return ``keys``, ``marks`` and ``balanced``."""
        return {"keys": self.keys, "marks": self.marks, "balanced": self.balanced}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length of a document if ``length`` is below it, otherwise None.

        In balanced documents every symbol occurs at least ``marks`` times.
        """
        needed = self.marks * (self.keys + 1 if self.balanced else 2)
        return None if length >= needed else f"a document needs at least {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, 2, N) and targets (R,) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from .synthetic.drawing import draw_pairs
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        draw_pairs(np.uint64(key), first, self.keys, self.marks, self.balanced, block.tokens, block.targets)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        The target is 1 if the first marks of both documents are followed by the same symbol. In a valid example each
        document has ``marks`` marks followed by one symbol and, if ``balanced``, the prescribed multiset of tokens.
        """
        import numpy as np

        from .synthetic.drawing import FIRST_SYMBOL, MARK
        from .synthetic.rows import Block, count_tokens

        tokens = block.tokens
        length = tokens.shape[2]
        marked = tokens == MARK
        keys = np.take_along_axis(np.roll(tokens, -1, axis=2), marked.argmax(axis=2)[..., None], axis=2)
        valid = ~marked[..., -1].any(axis=1)
        valid &= ((np.roll(tokens, -1, axis=2) == keys) | ~marked).all(axis=(1, 2))
        valid &= ((tokens >= MARK) & (tokens < FIRST_SYMBOL + self.keys)).all(axis=(1, 2))
        valid &= (marked.sum(axis=2) == self.marks).all(axis=1)
        others = FIRST_SYMBOL + np.arange(length - self.marks) % self.keys
        bag = np.bincount(np.append(others, np.full(self.marks, MARK)))
        if self.balanced:
            valid &= (count_tokens(tokens, FIRST_SYMBOL + self.keys) == bag).all(axis=(1, 2))
        return Block(tokens, (keys[:, 0, 0] == keys[:, 1, 0]).astype(np.int64)), valid

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``bag_of_tokens``: softmax regression on the token counts of both documents."""
        from .synthetic.drawing import FIRST_SYMBOL
        from .synthetic.floors import bag_of_tokens

        return {"bag_of_tokens": bag_of_tokens(self.blocks("train", length), self.keys + FIRST_SYMBOL)}
