"""Recall: key-value pairs, then keys whose values must be predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from lra_bench.contracts import UserError

from .options import at_least
from .synthetic.base import Common, SyntheticTask, tagging

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.floors import Rule
    from .synthetic.pairs import Decisive
    from .synthetic.rows import Block


class RecallTask(SyntheticTask):
    """Multi-query associative recall: predict the value of each repeated key.

    An example with ``pairs=2``, ``symbols=8``, ``length=12`` (a to d are keys, W to Z values, · is the blank)::

        input    b Y c Z · c · · · b · ·
        target   - - - - - Z - - - Y - -

    ``pairs`` key-value pairs are followed by ``queries`` of these keys among blanks. The target at a query is the value
    of its key; all other positions (``-``) are not scored. Half of the symbols are keys, half are values, and none
    occurs twice among the pairs of an example. With ``queries=None`` every key is queried once; with another number,
    the keys are queried equally often to within one. A query is g positions after the pairs (g = 1, 2, …) with
    probability proportional to g^(``power`` − 1): with 1 queries are spread evenly, with the paper's 0.01 most of them
    are close to the pairs. Token ids: 1 is the blank, then the keys, then the values.

    If ``pairs`` is a list, such as ``[2, 4, 8, 16]``, every example of train, validation and test has one of these
    numbers of pairs, each with the same probability, and the task is named ``recall_ladder``. With ``queries=None`` the
    number of targets is that of the pairs; with another number it is the same in all examples.

    At another length ``pairs``, ``symbols``, ``queries`` and ``power`` are the same; only the distance from pairs to
    queries changes.

    Floors (baselines without a model): ``majority``; ``value_shown``, a random one of the values in the example, which
    is right with a probability of 1 / P in an example of P pairs.

    Source: Arora et al. 2023 (Zoology), arXiv 2312.04927. With ``symbols=8192`` and 4 pairs in 64 tokens, 8 in 128, 16
    in 256 or 64 in 512, this is the task of its figure 2. Deviates: queries may be at any position after the pairs (in
    the paper at every second one); the order of the queried pairs is shuffled (in the paper's code earlier pairs tend
    to be queried earlier).
    """

    citation = (
        "after Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models, "
        "arXiv 2312.04927"
    )

    def __init__(
        self,
        *,
        length: int = 64,
        pairs: int | Sequence[int] = 4,
        symbols: int = 32,
        queries: int | None = None,
        power: float = 0.01,
        **common: Unpack[Common],
    ) -> None:
        self.pairs, self.ladder = pairs, not isinstance(pairs, int)
        numbers = [pairs] if isinstance(pairs, int) else pairs
        if not all(isinstance(number, int) for number in numbers):
            raise UserError(f"task.pairs={pairs}: must be a whole number or a list of whole numbers")
        self.choices = sorted(numbers)
        if len(set(self.choices)) < max(len(self.choices), 1):
            raise UserError(f"task.pairs={list(self.choices)}: name each number of pairs once, and at least one")
        at_least(1, pairs=self.choices[0])
        at_least(2, symbols=symbols)
        self.half, self.power, self.queries = symbols // 2, power, queries
        if queries is None and not self.ladder:
            self.queries = self.choices[0]
        if self.queries is not None:
            at_least(1, queries=self.queries)
        if symbols % 2:
            raise UserError(f"task.symbols={symbols}: half of them are keys and half are values; choose an even number")
        if (most := self.choices[-1]) > self.half:
            raise UserError(f"task.pairs={most}: needs {most} keys; set task.symbols to {2 * most} or more")
        if not power > 0:
            raise UserError(f"task.power={power}: must be above 0")
        name, version = ("recall_ladder", "1") if self.ladder else ("recall", "2")
        self.spec = tagging(name, length, symbols + 1, self.half, version=version)
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``pairs``, ``symbols``, ``queries`` and ``power``."""
        pairs = self.choices if self.ladder else self.pairs
        return {"pairs": pairs, "symbols": 2 * self.half, "queries": self.queries, "power": self.power}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length if ``length`` is below it, otherwise None."""
        needed = max(2 * pairs + (self.queries or pairs) for pairs in self.choices)
        return None if length >= needed else f"pairs and queries need at least {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from .synthetic.drawing import draw_recalls
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        cumulative = np.ones((len(self.choices), length))
        for row, pairs in zip(cumulative, self.choices, strict=True):
            weights = np.arange(1, length - 2 * pairs + 1, dtype=np.float64) ** (self.power - 1)
            row[: len(weights)] = np.cumsum(weights) / weights.sum()
        draw_recalls(
            *(np.uint64(key), first, np.array(self.choices), self.half, self.queries or 0),
            *(cumulative, block.tokens, block.targets),
        )
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens alone, and whether each example is valid, (R,).

        In a valid example the pairs consist of distinct keys and distinct values, all later tokens are blanks or keys
        of these pairs, there are ``queries`` queries, and the keys are queried equally often to within one.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.rows import Block

        targets = np.full(block.tokens.shape, NOT_SCORED)
        valid = np.zeros(len(targets), dtype=bool)
        for pairs, rows in self._by_pairs(block):
            targets[rows], valid[rows] = self._read(block.tokens[rows], pairs)
        return Block(block.tokens, targets), valid

    def _read(self, tokens: NDArray[Any], pairs: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the targets of examples with ``pairs`` pairs, and whether each example is valid."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import BLANK

        keys, values, rest = self._parts(tokens, pairs)
        queries = self.queries or pairs
        targets = np.full(tokens.shape, NOT_SCORED)
        expected = rest == BLANK
        fewest_queries, most_queries = np.full(len(rest), queries), np.zeros(len(rest), dtype=np.int64)
        valid = (keys >= 0).all(axis=1) & (keys < self.half).all(axis=1)
        valid &= (values >= 0).all(axis=1) & (values < self.half).all(axis=1)
        for pair in range(pairs):
            hits = rest == tokens[:, [2 * pair]]
            targets[:, 2 * pairs :][hits] = np.broadcast_to(values[:, [pair]], hits.shape)[hits]
            expected |= hits
            fewest_queries = np.minimum(fewest_queries, hits.sum(axis=1))
            most_queries = np.maximum(most_queries, hits.sum(axis=1))
            valid &= (keys == keys[:, [pair]]).sum(axis=1) == 1
            valid &= (values == values[:, [pair]]).sum(axis=1) == 1
        valid &= expected.all(axis=1) & (most_queries - fewest_queries <= 1)
        valid &= (targets != NOT_SCORED).sum(axis=1) == queries
        return targets, valid

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the number of ``pairs`` of its example and the ``distance`` from its value for each target, (T,)."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import FIRST_KEY
        from .synthetic.sources import distance_after_first

        pairs = (block.tokens >= FIRST_KEY + self.half).sum(axis=1)  # values occur in pairs only
        scored = (block.targets != NOT_SCORED).sum(axis=1)
        return {"pairs": np.repeat(pairs, scored), "distance": distance_after_first(block)}

    def decisive(self, block: Block) -> Decisive:
        """Return the values, of which examples with all values have no other one."""
        from .synthetic.drawing import FIRST_KEY
        from .synthetic.pairs import Decisive

        first = FIRST_KEY + self.half
        return Decisive(block.tokens >= first, first, self.half)

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``value_shown``: a random value of the example, with an accuracy of 1 / P for P pairs."""
        return {"value_shown": self._value_shown}

    def _value_shown(self, block: Block) -> NDArray[Any]:
        import numpy as np

        from .synthetic.floors import one_of

        found = np.zeros(block.targets.shape)
        for pairs, rows in self._by_pairs(block):
            found[rows] = one_of(self._parts(block.tokens[rows], pairs)[1], block.select(rows))
        return found

    def _by_pairs(self, block: Block) -> Iterator[tuple[int, list[int]]]:
        """Yield every number of pairs that may occur with the indices of the examples that have it.

        The pairs of an example are as many as its values. With a single number of pairs all examples are assumed to
        have it.
        """
        import numpy as np

        from .synthetic.drawing import FIRST_KEY

        found = (block.tokens >= FIRST_KEY + self.half).sum(axis=1)
        for pairs in self.choices:
            rows = np.flatnonzero(found == pairs) if self.ladder else np.arange(len(found))
            yield pairs, rows.tolist()

    def _parts(self, tokens: NDArray[Any], pairs: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the numbers of the keys and of the values, (R, P) each, and the tokens after the pairs."""
        from .synthetic.drawing import FIRST_KEY

        front = tokens[:, : 2 * pairs] - FIRST_KEY
        return front[:, ::2], front[:, 1::2] - self.half, tokens[:, 2 * pairs :]
