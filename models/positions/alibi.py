"""ALiBi: attention scores decrease linearly with the distance, with one slope per head."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind

Form = Literal["symmetric", "one_sided", "two_slopes"]


class AlibiPosition(Position):
    """Add −m_h |i − j| to the scores of head h, with fixed slopes m_h = 2^(−8h/H).

    Press, Smith, Lewis 2022, arXiv 2108.12409. Defined at any length; no parameters. The causal form is that of the
    paper. The bidirectional forms are those that the authors suggest in addition to their code:

    - ``symmetric``: the bias depends on the distance only and does not distinguish left from right.
    - ``one_sided``: half of the heads attend to a token and the tokens before it, the others to it and those after it.
    - ``two_slopes``: each head learns one slope per direction, initialised to the fixed slopes in order for keys before
      the query and in reverse order for keys after it (2 H parameters).

    If the number of heads is not a power of two, slopes follow the authors' code; the paper does not define them.
    Raises ``UserError`` if ``form`` is unknown, is set for a causal model, or is ``one_sided`` with a single head.
    """

    name = "alibi"
    code = "ofirpress/attention_with_linear_biases@4b92f28:fairseq/models/transformer.py"
    hooks = frozenset({"bias"})
    before: Tensor
    after: Tensor

    def __init__(self, width: int, heads: int, max_length: int, *, form: Form = "symmetric", **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if form not in get_args(Form):
            raise UserError(f"position.form={form}: must be one of {', '.join(get_args(Form))}")
        if form != "symmetric" and self.causal:
            raise UserError(f"position.form={form}: needs a bidirectional model; leave it out")
        if form == "one_sided" and heads < 2:
            raise UserError(f"position.form=one_sided: needs 2 heads, backbone.heads={heads}; choose another form")
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
        """Return minus slope times distance (1 or B, H, N, M); −inf on the side that is masked for a head."""
        offsets = behind(q_positions, k_positions)
        if self.form == "symmetric":
            return -self.before[:, None, None] * offsets.abs()
        before, after = (side[:, None, None] for side in (self.before, self.after))
        # Slopes are selected before the product, because infinity times zero is NaN.
        slope = torch.where(offsets > 0, before, after).masked_fill(offsets == 0, 0)
        return -slope * offsets.abs()


def slopes(heads: int) -> Tensor:
    """Return the slopes (H,) of ``heads`` heads.

    Slopes form a geometric sequence for the largest power of two up to ``heads``. Further heads take every second slope
    of the sequence for twice as many heads.
    """
    power = 2 ** math.floor(math.log2(heads))
    base = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    finer = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return torch.tensor(base + finer[: heads - power])
