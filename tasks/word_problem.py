"""Word problems: the product of all group elements read so far, of which parity is the simplest case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from .options import at_least
from .synthetic.base import Common, SyntheticTask, tagging
from .synthetic.groups import multiplication_table, order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .synthetic.floors import Rule
    from .synthetic.pairs import Decisive
    from .synthetic.rows import Block


class WordProblemTask(SyntheticTask):
    """Word problem of a finite group: predict the product of all elements read so far.

    A training and a test example with ``group=z2`` (parity), ``length=8``, ``scored_from=6`` (0 is the identity)::

        input    1 0 1 1 0 1 0 1        input    1 1 0 1 0 0 1 0
        target   1 1 0 1 1 - - -        target   - - - - - - 0 0

    Tokens are elements of the group, all with the same probability. The target at a position is the product of the
    elements up to that position, x_1 x_2 … x_i; a position ``-`` is not scored. In parity (``z2``) this is whether the
    number of ones is even or odd. ``s3`` and ``s5`` are all permutations of three and of five letters, ``a5`` the even
    ones of five letters. A product applies its last element first. Other groups have a name, such as ``z5``, ``d4``,
    ``q8`` or ``z2*z2``, or are given by their table (``groups.multiplication_table``). The token id of element e is
    1 + e, its class e; element 0 is the identity.

    In training the first n positions of an example have targets, where all n from ``shortest`` to the length have the
    same probability. Tasks of this kind require causal systems, for which this equals examples of n tokens. In
    validation and test, and at other lengths, only positions after the first ``scored_from`` have targets (by default
    after the training length), and at least the last position: at the training length this is the only target, and
    longer examples are scored only where the model was never trained.

    Floors (baselines without a model): ``majority``; ``last_element``, the last element read; and, unless the group is
    abelian, ``abelian_quotient``, a random element of the coset of the commutator subgroup that contains the product.
    For ``s3`` and ``s5`` this coset is the sign of the permutation; ``a5`` has only one.

    What it shows: whether a system updates a state that depends on the order of all tokens. ``z2`` and ``s3`` are
    solvable groups; ``a5`` and ``s5`` are not, and their word problems are complete for NC¹, so that, unless TC⁰
    equals NC¹, attention and linear recurrences with diagonal transitions do not solve them at every length with a
    fixed number of layers.

    Source: Merrill et al. 2024, arXiv 2404.08819. Training lengths from 3 to 40 as for parity in Grazzi et al. 2024,
    arXiv 2411.12537. Deviates: the test scores only the last position or positions beyond the training length.
    """

    citation = "after Merrill, Petty and Sabharwal 2024, The Illusion of State in State-Space Models, arXiv 2404.08819"

    def __init__(
        self,
        *,
        group: str | Sequence[Sequence[int]] = "z2",
        length: int = 40,
        shortest: int = 3,
        scored_from: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        size = order(group)
        if not isinstance(group, str):
            group = multiplication_table(group).tolist()  # checks it
        at_least(1, shortest=shortest)
        self.group, self.shortest = group, shortest
        self.scored_from = length if scored_from is None else scored_from
        at_least(0, scored_from=self.scored_from)
        named = {"z2": "parity"}.get(group, group.replace("*", "_")) if isinstance(group, str) else f"group_{size}"
        self.spec = tagging(named, length, size, size, direction="causal")
        super().__init__(**common)

    def settings(self) -> dict[str, Any]:
        """Return ``group``, ``shortest`` and ``scored_from``."""
        return {"group": self.group, "shortest": self.shortest, "scored_from": self.scored_from}

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return a reason with the smallest possible length if ``length`` is below it, otherwise None."""
        return None if length >= self.shortest else f"an example needs at least {self.shortest:,} tokens"

    def draw(self, key: int, first: int, count: int, length: int) -> Block:
        """Return training examples ``first`` to ``first + count`` of the stream ``key``.

        Tokens (R, N) and targets (R, N), of which the first n are scored.
        """
        import numpy as np

        from .synthetic.drawing import draw_words
        from .synthetic.rows import unfilled

        block = unfilled(self.spec, count, length)
        draw_words(np.uint64(key), first, self._table, self.shortest, block.tokens, block.targets)
        return block

    def in_split(self, block: Block, split: str) -> Block:
        """Return examples with the targets of a split: in train those of the block, otherwise the last ones."""
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.rows import Block

        if split == "train":
            return block
        first = min(self.scored_from, block.tokens.shape[1] - 1)
        targets = np.full_like(block.targets, NOT_SCORED)
        targets[:, first:] = self._products(block.tokens)[:, first:]
        return Block(block.tokens, targets)

    def read(self, block: Block) -> tuple[Block, NDArray[Any]]:
        """Return targets computed from the tokens, as many as the block has, and whether each example is valid, (R,).

        In a valid example all tokens are elements of the group, and at least ``shortest`` positions are scored if the
        first one is.
        """
        import numpy as np

        from lra_bench.contracts import NOT_SCORED

        from .synthetic.drawing import FIRST_ELEMENT
        from .synthetic.rows import Block

        elements = block.tokens.astype(np.int64) - FIRST_ELEMENT
        valid = ((elements >= 0) & (elements < self.spec.classes)).all(axis=1)
        targets = self._products(block.tokens)
        scored = (block.targets != NOT_SCORED).sum(axis=1)
        valid &= (block.targets[:, 0] == NOT_SCORED) | (scored >= self.shortest)
        return Block(block.tokens, np.where(np.arange(targets.shape[1]) < scored[:, None], targets, NOT_SCORED)), valid

    def decisive(self, block: Block) -> Decisive:
        """Return the elements before the first position that is scored in the test split."""
        import numpy as np

        from .synthetic.drawing import FIRST_ELEMENT
        from .synthetic.pairs import Decisive

        first_scored = min(self.scored_from, block.tokens.shape[1] - 1)
        where = np.broadcast_to(np.arange(block.tokens.shape[1]) < first_scored, block.tokens.shape)
        return Decisive(where, FIRST_ELEMENT, self.spec.classes)

    def shortcuts(self, length: int) -> Mapping[str, Rule]:
        """Return the rules ``last_element``, the element at the position itself, and ``abelian_quotient``."""
        import numpy as np

        from .synthetic.drawing import FIRST_ELEMENT
        from .synthetic.quotients import commutator_subgroup

        rules: dict[str, Rule] = {
            "last_element": lambda block: block.tokens.astype(int) - FIRST_ELEMENT == block.targets
        }
        if (coset := len(commutator_subgroup(self._table))) > 1:
            rules["abelian_quotient"] = lambda block: np.full(block.targets.shape, 1 / coset)
        return rules

    def _products(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return the product of the elements up to each position, (R, N); tokens of no element count as the nearest."""
        import numpy as np

        from .synthetic.drawing import FIRST_ELEMENT

        table, products = self._table, np.empty(tokens.shape, dtype=np.int64)
        elements = np.clip(tokens.astype(np.int64) - FIRST_ELEMENT, 0, len(table) - 1)
        state = np.zeros(len(tokens), dtype=np.int64)
        for place in range(tokens.shape[1]):
            products[:, place] = state = table[state, elements[:, place]]
        return products

    @cached_property
    def _table(self) -> NDArray[Any]:
        return multiplication_table(self.group)
