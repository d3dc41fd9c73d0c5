"""Base class of the recall tasks of MAD: training on every next token, tests on values of keys shown before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError

from ..options import at_least
from ..synthetic.base import SyntheticTask, tagging

if TYPE_CHECKING:
    from ..synthetic.floors import Rule
    from ..synthetic.rows import Block

CITATION = "Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures, arXiv 2403.17844"


class NextTokenRecall(SyntheticTask):
    """Base class of tasks whose examples are keys and values, of which the values of repeated keys are tested.

    ``draw`` and ``read`` return the targets of the test. In training every next token is the target; the last token has
    none. A subclass calls ``declare`` before the constructor of this class.

    Attributes:
        keys: Number of symbols of keys, the first ones.
        values: Number of symbols of values, which follow them.
    """

    citation = CITATION
    keys: int
    values: int

    def declare(self, name: str, length: int, symbols: int, others: int, fewest_keys: int) -> None:
        """Set ``spec``, ``keys`` and ``values``.

        Args:
            name: Name of the task.
            length: Length of the training examples.
            symbols: Number of all symbols.
            others: Number of symbols that are neither keys nor values.
            fewest_keys: Smallest possible number of keys.
        """
        at_least(0, symbols=symbols)
        if symbols - others < 2 * fewest_keys:
            raise UserError(f"task.symbols={symbols}: is too small; set it to {2 * fewest_keys + others} or more")
        self.keys = (symbols - others) // 2
        self.values = symbols - others - self.keys
        self.spec = tagging(name, length, symbols, symbols, direction="causal", chance=1 / self.values)

    def in_split(self, block: Block, split: str) -> Block:
        """Return examples with the targets of a split: in train every next token."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import Block

        if split != "train":
            return block
        targets = np.full_like(block.targets, NOT_SCORED)
        targets[:, :-1] = block.tokens[:, 1:].astype(targets.dtype) - 1
        return Block(block.tokens, targets)

    def fitted_on(self, length: int) -> Iterator[Block]:
        """Yield the training examples with the targets of the test."""
        for block in self.blocks("train", length):
            yield self.read(block)[0]

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rules ``value_shown`` and ``commonest_value`` of the values shown before the target."""
        from .floors import earlier_values

        return {
            "value_shown": lambda block: earlier_values(block, self.keys, self.values)[0],
            "commonest_value": lambda block: earlier_values(block, self.keys, self.values)[1],
        }
