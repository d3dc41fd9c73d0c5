"""Kernels of the distance with two learned numbers per head."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind

Form = Literal["log", "power"]


class KerplePosition(Position):
    """Adds −a ln(1 + b |i − j|), or −a |i − j|^b with 0 < b < 2, to the scores of a head; a, b > 0 are learned.

    Chi et al. 2022, arXiv 2205.09921. Defined at any length; 2 H parameters, begun where the authors' code draws them.
    Deviates: a and the logarithmic b pass through softplus and the exponent through a sigmoid, where the code clamps
    them; one pair per head serves all layers. As symmetric as ALiBi: alone it does not tell left from right.
    """

    name = "kerple"
    hooks = frozenset({"bias"})

    def __init__(self, width: int, heads: int, max_length: int, *, form: Form = "log", **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if form not in get_args(Form):
            raise UserError(f"position.form={form}: is none of {', '.join(get_args(Form))}")
        self.form = form
        above = torch.rand(2, heads).clamp(min=0.01)
        self.amount = nn.Parameter((2 * above[0]).expm1().log())
        self.shape = nn.Parameter(above[1].expm1().log() if form == "log" else (above[1] / 2).logit())

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Minus the kernel of the distance (1 or B, H, N, M)."""
        distance = behind(q_positions, k_positions).abs().to(self.amount.dtype)
        amount = F.softplus(self.amount)[:, None, None]
        if self.form == "log":
            return -amount * (F.softplus(self.shape)[:, None, None] * distance).log1p()
        return -amount * distance ** (2 * self.shape.sigmoid())[:, None, None]
