"""Recall: keys with their values first, then some of the keys again, and the value of each is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import TaskSpec, UserError

from .options import at_least
from .synthetic.base import Common, SyntheticTask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.floors import Rule
    from .synthetic.rows import Block


class RecallTask(SyntheticTask):
    """Multi-query associative recall: ``pairs`` of key and value, then ``queries`` of those keys among blanks.

    Arora et al. 2023 (Zoology), arXiv 2312.04927; with 8,192 ``symbols`` and 4 pairs in 64 tokens, 8 in 128, 16 in 256
    or 64 in 512 the task of its figure 2. Half of the symbols are keys, half are values; none occurs twice among the
    pairs of a row. The target at a query's place is the value of its key. ``queries`` None asks for every pair once;
    more ask for all pairs equally often, to within one. A query stands g places behind the pairs (g = 1, 2, …) with
    probability proportional to g^(``power`` − 1): 1 spreads queries evenly, the paper's 0.01 keeps most of them near.
    Ids: 1 blank, then keys, then values.

    At another length pairs, symbols, queries and ``power`` stay, so that only the way from pair to query grows.
    Deviates: queries may stand at any place behind the pairs, in the paper at every second one; which pair is asked at
    which place is shuffled, in the paper's code earlier pairs tend to be asked earlier.
    """

    headline_floor = "value_shown"
    citation = (
        "after Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models, "
        "arXiv 2312.04927"
    )

    def __init__(
        self,
        *,
        length: int = 64,
        pairs: int = 4,
        symbols: int = 32,
        queries: int | None = None,
        power: float = 0.01,
        **common: Unpack[Common],
    ) -> None:
        at_least(1, pairs=pairs)
        at_least(2, symbols=symbols)
        self.pairs, self.half, self.power = pairs, symbols // 2, power
        self.queries = pairs if queries is None else queries
        at_least(1, queries=self.queries)
        if symbols % 2:
            raise UserError(f"task.symbols={symbols}: half of them are keys and half are values; choose an even number")
        if pairs > self.half:
            raise UserError(f"task.pairs={pairs}: needs as many keys; set task.symbols={2 * pairs} or more")
        if not power > 0:
            raise UserError(f"task.power={power}: must be above 0")
        self.spec = TaskSpec(
            name="recall",
            version="2",
            kind="tagging",
            direction="either",
            vocabulary_size=symbols + 2,
            classes=self.half,
            train_length=length,
            chance=1 / self.half,
        )
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """``pairs``, ``symbols``, ``queries`` and ``power``."""
        return {"pairs": self.pairs, "symbols": 2 * self.half, "queries": self.queries, "power": self.power}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or how long a row must be."""
        needed = 2 * self.pairs + self.queries
        return None if length >= needed else f"pairs and queries take {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Tokens (R, N) and targets (R, N)."""
        import numpy as np

        from .synthetic.drawing import draw_recalls
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        weights = np.arange(1, length - 2 * self.pairs + 1, dtype=np.float64) ** (self.power - 1)
        cumulative = np.cumsum(weights) / weights.sum()
        draw_recalls(
            *(np.uint64(key), first, self.pairs, self.half, self.queries),
            *(cumulative, block.tokens, block.targets),
        )
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """The value behind the key that each later key equals; all must be keys, values and blanks in their places."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import BLANK
        from .synthetic.rows import Block

        keys, values, rest = self._parts(block)
        targets = np.full(block.tokens.shape, NOT_SCORED)
        known = rest == BLANK
        asked_least, asked_most = np.full(len(rest), self.queries), np.zeros(len(rest), dtype=np.int64)
        well_formed = (keys >= 0).all(axis=1) & (keys < self.half).all(axis=1)
        well_formed &= (values >= 0).all(axis=1) & (values < self.half).all(axis=1)
        for pair in range(self.pairs):
            hits = rest == block.tokens[:, [2 * pair]]
            targets[:, 2 * self.pairs :][hits] = np.broadcast_to(values[:, [pair]], hits.shape)[hits]
            known |= hits
            asked_least = np.minimum(asked_least, hits.sum(axis=1))
            asked_most = np.maximum(asked_most, hits.sum(axis=1))
            well_formed &= (keys == keys[:, [pair]]).sum(axis=1) == 1
            well_formed &= (values == values[:, [pair]]).sum(axis=1) == 1
        well_formed &= known.all(axis=1) & (asked_most - asked_least <= 1)
        well_formed &= (targets != NOT_SCORED).sum(axis=1) == self.queries
        return Block(block.tokens, targets), well_formed

    def shortcuts(self) -> Mapping[str, Rule]:
        """``value_shown``: any value of the row, 1 / ``pairs``."""
        from .synthetic.floors import one_of

        return {"value_shown": lambda block: one_of(self._parts(block)[1], block)}

    def _parts(self, block: Block) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Numbers of the keys and of the values (R, P), and the tokens behind them."""
        from .synthetic.drawing import FIRST_KEY

        front = block.tokens[:, : 2 * self.pairs] - FIRST_KEY
        return front[:, ::2], front[:, 1::2] - self.half, block.tokens[:, 2 * self.pairs :]
