"""Linear biases: scores fall with the distance, at a slope of its own for each head."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind

Form = Literal["symmetric", "one_sided", "two_slopes"]


class AlibiPosition(Position):
    """Adds −m_h |i − j| to the scores of head h, with fixed slopes m_h = 2^(−8h/H).

    Press, Smith, Lewis 2022, arXiv 2108.12409. Defined at any length, no parameters; causal as the paper has it.
    Bidirectional forms are those that the authors suggest beside their code: ``symmetric`` cannot tell left from right
    by itself; ``one_sided`` lets half of the heads see only what stands before a token, the others what stands after;
    ``two_slopes`` learns one slope for either side, begun with those of the heads in order and in reverse.
    Slopes for a number of heads that is no power of two follow the authors' code, which their text does not give.
    """

    name = "alibi"
    hooks = frozenset({"bias"})
    before: Tensor
    after: Tensor

    def __init__(self, width: int, heads: int, max_length: int, *, form: Form = "symmetric", **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if form not in get_args(Form):
            raise UserError(f"position.form={form}: is none of {', '.join(get_args(Form))}")
        if form != "symmetric" and self.causal:
            raise UserError(f"position.form={form}: a causal model sees one side only; leave it out")
        if form == "one_sided" and heads < 2:
            raise UserError(f"position.form=one_sided: needs a head for either side, backbone.heads={heads}")
        self.form = form
        before, after = slopes(heads), slopes(heads)
        if form == "one_sided":
            half = heads // 2
            before, after = slopes(heads - half), slopes(half)
            before = torch.cat((before, before.new_full((half,), torch.inf)))
            after = torch.cat((after.new_full((heads - half,), torch.inf), after))
        if form == "two_slopes":
            self.before, self.after = nn.Parameter(before), nn.Parameter(after.flip(0))
        else:
            self.register_buffer("before", before, persistent=False)
            self.register_buffer("after", after, persistent=False)

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Minus slope times distance (1 or B, H, N, M); −inf on the side that a head does not see."""
        places = behind(q_positions, k_positions)
        if self.form == "symmetric":
            return -self.before[:, None, None] * places.abs()
        before, after = (side[:, None, None] for side in (self.before, self.after))
        # Each product on its own side: infinity times zero is no number.
        slope = torch.where(places > 0, before, after).masked_fill(places == 0, 0)
        return -slope * places.abs()


def slopes(heads: int) -> Tensor:
    """The slopes of ``heads`` heads: a geometric sequence, interleaved with the next finer one where need be."""
    whole = 2 ** math.floor(math.log2(heads))
    found = [2 ** (-8 * h / whole) for h in range(1, whole + 1)]
    finer = [2 ** (-8 * h / (2 * whole)) for h in range(1, 2 * whole + 1, 2)]
    return torch.tensor(found + finer[: heads - whole])
