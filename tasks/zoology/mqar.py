"""Multi-query associative recall, with updated values or compound keys as variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from lra_bench.contracts import UserError

from ..options import at_least
from ..synthetic.base import Common, SyntheticTask, tagging

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..synthetic.floors import Rule
    from ..synthetic.pairs import Decisive
    from ..synthetic.rows import Block

VARIANTS = (None, "forgetting", "compositional")


class Found(NamedTuple):
    """What a reader of the tokens finds.

    Attributes:
        targets: Value of the queried key at each place, (R, N).
        sources: Place of that value, (R, N); only at places with a target.
        valid: Whether each example is valid, (R,).
    """

    targets: NDArray[Any]
    sources: NDArray[Any]
    valid: NDArray[Any]


class MultiQueryRecall(SyntheticTask):
    """Multi-query associative recall as in Zoology: predict the value of each key that is repeated.

    An example with ``pairs=2``, ``symbols=16``, ``length=12`` (a to g are keys, P to W values, · is the blank)::

        input    b Q c R · · c · b · · ·
        target   - - - - - - R - Q - - -

    ``pairs`` pairs of distinct keys and distinct values are shown ``passes`` times. Then every key is queried once, at
    an even distance 2 g from the last pair. The gaps g = 0, 1, … are sampled without replacement with probability
    proportional to (g + 1)^(``power`` − 1), in the order of the pairs, so that earlier pairs tend to be queried
    earlier. The target at a query is the value of its key; all other places (``-``) are not scored. The places between
    are blanks, or random symbols with ``fillers``. ``pairs`` may be a list of numbers, of which each example has one.

    ``variant``: with ``forgetting``, ``updates`` keys are shown again with another value, which is then the target.
    With ``compositional``, a key is a pair of symbols, and the keys are all combinations of √``pairs`` first and as
    many second symbols, so that neither symbol alone decides; the target is at the second one. A query has three
    places.

    Half of the symbols are keys (without the blank, symbol 0) and half are values; with ``compositional`` a third each
    are first symbols, second symbols and values. Classes are all symbols. Token ids are symbols plus 1. At another
    length the options are the same, and only the distance from pairs to queries changes.

    Floors (baselines without a model): ``majority``; ``value_shown``, a random one of the values shown.

    Source: Arora et al. 2023 (Zoology), arXiv 2312.04927, and HazyResearch/zoology@d88d6f5:zoology/data. The defaults
    are the easiest setting of its figure 2. ``RecallTask`` has queries at any place and in random order. Deviates: an
    updated value always differs from the one that it replaces (in the code from that of another key); no example occurs
    twice; ``passes`` may be above 1, with which this version of the code fails. The paper reports the best of four
    learning rates on the reported data.
    """

    citation = (
        "Arora et al. 2023, Zoology: Measuring and Improving Recall in Efficient Language Models, arXiv 2312.04927"
    )

    def __init__(
        self,
        *,
        length: int = 64,
        pairs: int | Sequence[int] = 4,
        symbols: int = 8192,
        passes: int = 1,
        fillers: bool = False,
        power: float = 0.01,
        variant: str | None = None,
        updates: int = 0,
        **common: Unpack[Common],
    ) -> None:
        if variant not in VARIANTS:
            raise UserError(f"task.variant={variant}: is unknown; choose forgetting, compositional or null")
        numbers = [pairs] if isinstance(pairs, int) else list(pairs)
        if not numbers or len(set(numbers)) < len(numbers) or not all(isinstance(number, int) for number in numbers):
            raise UserError(f"task.pairs={pairs}: must be a whole number or a list of different whole numbers")
        at_least(1, pairs=min(numbers), passes=passes)
        at_least(0, updates=updates)
        self.compositional, self.choices, self.variant = variant == "compositional", sorted(numbers), variant
        self.pairs, self.symbols, self.passes, self.fillers, self.power = pairs, symbols, passes, fillers, power
        self.updates = updates
        self.kinds = 3 if self.compositional else 2
        at_least(2 * self.kinds, symbols=symbols)
        self._check(updates)
        self.first_value = (self.kinds - 1) * (symbols // self.kinds)
        name, chance = "mqar" if variant is None else f"mqar_{variant}", 1 / (symbols - self.first_value)
        self.spec = tagging(name, length, symbols, symbols, chance=chance)
        super().__init__(**common)

    def _check(self, updates: int) -> None:
        """Raise ``UserError`` if options do not fit each other."""
        most, keys = self.choices[-1], self.symbols // self.kinds
        if (updates > 0) != (self.variant == "forgetting"):
            raise UserError(f"task.updates={updates}: must be at least 1 with task.variant=forgetting, otherwise 0")
        if updates > self.choices[0]:
            raise UserError(f"task.updates={updates}: is above the number of keys; raise task.pairs")
        if self.passes > 1 and self.variant is not None:
            raise UserError(f"task.passes={self.passes}: needs task.variant=null")
        if self.compositional and any(math.isqrt(pairs) ** 2 != pairs for pairs in self.choices):
            raise UserError(f"task.pairs={self.pairs}: must be squares (4, 9, 16, …) with task.variant=compositional")
        if (math.isqrt(most) if self.compositional else most) > keys - 1 or most > keys:
            raise UserError(
                f"task.pairs={most}: needs more symbols; set task.symbols to {self.kinds * (most + 1)} or more"
            )
        if not self.power > 0:
            raise UserError(f"task.power={self.power}: must be above 0")

    def settings(self) -> dict[str, Any]:
        """Return all options of the task but ``length`` and those that synthetic tasks share."""
        names = ("symbols", "passes", "fillers", "power", "variant", "updates")
        pairs = self.pairs if isinstance(self.pairs, int) else self.choices
        return {"pairs": pairs, **{name: getattr(self, name) for name in names}}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason if ``length`` is odd or too short, otherwise None."""
        needed = self._context(self.choices[-1]) + self.kinds * self.choices[-1]
        if length % 2:
            return "an example needs an even number of tokens"
        return None if length >= needed else f"pairs and queries need at least {needed:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return tokens (R, N) and targets (R, N) of examples ``first`` to ``first + count`` of the stream ``key``."""
        import numpy as np

        from ..synthetic.rows import unfilled
        from .drawing import draw_compositional, draw_mqar

        block = unfilled(self.spec, count, length)
        cumulative = np.ones((len(self.choices), length))
        for row, pairs in zip(cumulative, self.choices, strict=True):
            gaps = (length - self._context(pairs)) // self.kinds
            weights = np.arange(1, gaps + 1, dtype=np.float64) ** (self.power - 1)
            row[:gaps] = np.cumsum(weights) / weights.sum()
        stream, choices, filled = (np.uint64(key), first), np.array(self.choices), (block.tokens, block.targets)
        if self.compositional:
            sides = np.array([math.isqrt(pairs) for pairs in self.choices])
            draw_compositional(*stream, sides, self.symbols, self.fillers, cumulative, *filled)
        else:
            repeated = self.passes, self.updates
            draw_mqar(*stream, choices, self.symbols, *repeated, self.fillers, cumulative, *filled)
        return block

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return the targets computed from the tokens, and whether each example is valid, (R,).

        In a valid example keys and values are distinct symbols of their ranges, repeated or updated as the options
        say, and each key is queried once, at a distance that is a multiple of the places of a query. The number of
        pairs is the number of targets of the block. With fillers, which may equal a key, so are the places of queries.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.rows import Block

        targets, valid = np.full(block.tokens.shape, NOT_SCORED), np.zeros(len(block.tokens), dtype=bool)
        for pairs, rows in self._by_pairs(block):
            found = self._find(block.select(rows), pairs)
            targets[rows], valid[rows] = found.targets, found.valid
        return Block(block.tokens, targets), valid

    def _find(self, block: Block, pairs: int) -> Found:
        """Return the targets of examples with ``pairs`` pairs, where their values are, and which are valid."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from ..synthetic.drawing import BLANK

        symbols, context, kinds = block.tokens.astype(np.int64) - 1, self._context(pairs), self.kinds
        shown = symbols[:, :context].reshape(len(symbols), -1, kinds)
        targets, sources = np.full(symbols.shape, NOT_SCORED), np.zeros(symbols.shape, dtype=np.int64)
        for pair in range(shown.shape[1]):
            hits = np.ones((len(symbols), symbols.shape[1] - context - kinds + 2), dtype=bool)
            for part in range(kinds - 1):
                compared = symbols[:, context + part : context + part + hits.shape[1]]
                hits &= compared == shown[:, pair, part, None]
            last = slice(context + kinds - 2, None)
            targets[:, last] = np.where(hits, shown[:, pair, -1, None], targets[:, last])
            sources[:, last] = np.where(hits, kinds * pair + kinds - 1, sources[:, last])
        scored = block.targets != NOT_SCORED
        if self.fillers:
            targets[~scored] = NOT_SCORED
        found = targets != NOT_SCORED
        valid = self._valid_pairs(shown, pairs) & (found.sum(axis=1) == pairs)
        rows, places = np.nonzero(found)
        wrong = (places - context - kinds + 2) % kinds != 0
        valid[rows[wrong]] = False
        if not self.fillers:
            queried = symbols == BLANK - 1
            for part in range(kinds - 1):
                queried[:, : symbols.shape[1] - part] |= found[:, part:]
            valid &= queried[:, context:].all(axis=1)
        # Each key is queried once: of as many targets as pairs, no two have the same source.
        queries = np.sort(np.where(found, sources, -1), axis=1)[:, -pairs:]
        return Found(targets, sources, valid & (np.diff(queries, axis=1) > 0).all(axis=1))

    def _valid_pairs(self, shown: NDArray[Any], pairs: int) -> NDArray[Any]:
        """Return whether the pairs of each example (R, P, 2 or 3) are as the options say."""
        import numpy as np

        first, size, valid = 1, self.symbols // self.kinds, np.ones(len(shown), dtype=bool)
        for part in range(self.kinds):
            last = self.symbols if part == self.kinds - 1 else (part + 1) * size
            valid &= ((shown[..., part] >= first) & (shown[..., part] < last)).all(axis=1)
            first = last
        original, again = shown[:, :pairs], shown[:, pairs:]
        codes = original[..., 0] * self.symbols + (original[..., 1] if self.compositional else 0)
        for distinct in (codes, original[..., -1]):
            valid &= (np.diff(np.sort(distinct, axis=1), axis=1) > 0).all(axis=1)
        if self.compositional:
            for part in range(2):
                names = (np.diff(np.sort(original[..., part], axis=1), axis=1) > 0).sum(axis=1) + 1
                valid &= names == math.isqrt(pairs)
        elif self.updates:
            same = again[:, :, None, 0] == original[:, None, :, 0]
            kept = (again[:, :, None, 1] == original[:, None, :, 1]) & same
            valid &= (same.sum(axis=2) == 1).all(axis=1) & (same.sum(axis=1) <= 1).all(axis=1) & ~kept.any(axis=(1, 2))
        else:
            valid &= (again == np.tile(original, (1, self.passes - 1, 1))).all(axis=(1, 2))
        return valid

    def properties(self, block: Block) -> Mapping[str, NDArray[Any]]:
        """Return the number of ``pairs`` of its example and the ``distance`` from its value for each target, (T,)."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        scored, sources = block.targets != NOT_SCORED, np.zeros(block.targets.shape, dtype=np.int64)
        for pairs, rows in self._by_pairs(block):
            sources[rows] = self._find(block.select(rows), pairs).sources
        distance = np.arange(block.targets.shape[1]) - sources
        return {"pairs": np.repeat(scored.sum(axis=1), scored.sum(axis=1)), "distance": distance[scored]}

    def decisive(self, block: Block) -> Decisive:
        """Return the values of the pairs."""
        import numpy as np

        from ..synthetic.pairs import Decisive

        where = np.zeros(block.tokens.shape, dtype=bool)
        for pairs, rows in self._by_pairs(block):
            where[rows, self.kinds - 1 : self._context(pairs) : self.kinds] = True
        return Decisive(where, 1 + self.first_value, self.symbols - self.first_value)

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rule ``value_shown``: a random one of the values shown, repeated ones as often as they are."""
        return {"value_shown": self._value_shown}

    def _value_shown(self, block: Block) -> NDArray[Any]:
        import numpy as np

        from ..synthetic.floors import one_of

        right = np.zeros(block.targets.shape)
        for pairs, rows in self._by_pairs(block):
            values = block.tokens[rows, self.kinds - 1 : self._context(pairs) : self.kinds].astype(np.int64) - 1
            right[rows] = one_of(values, block.select(rows))
        return right

    def _context(self, pairs: int) -> int:
        """Return the number of tokens of the pairs, with repetitions and updates."""
        return self.kinds * (pairs * self.passes + self.updates)

    def _by_pairs(self, block: Block) -> Iterator[tuple[int, list[int]]]:
        """Yield every number of pairs with the indices of the examples that have as many targets."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        counts = (block.targets != NOT_SCORED).sum(axis=1)
        for pairs in self.choices:
            yield pairs, np.flatnonzero(counts == pairs).tolist()
