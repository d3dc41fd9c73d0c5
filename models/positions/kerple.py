"""KERPLE: a kernel of the distance with two learned parameters per head."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .position import Position, behind

Form = Literal["log", "power"]


class KerplePosition(Position):
    """Add −a ln(1 + b |i − j|), or −a |i − j|^b with 0 < b < 2, to the scores of a head; a, b > 0 are learned.

    Chi et al. 2022, arXiv 2205.09921. ``form`` is ``log`` or ``power``. Defined at any length. 2 H parameters, with the
    initial distributions of the authors' code (chijames/KERPLE at 25be3d7, megatron/mpu/layers.py): a from U(0, 2) and
    b from U(0, 1) for ``log``, a from U(0, 1) and b from U(0, 2) for ``power``. The bias is symmetric, like that of
    ALiBi: it does not distinguish left from right. Raises ``UserError`` if ``form`` is unknown.

    Deviations from the authors' code: a and the b of ``log`` are parametrised by softplus and the exponent by a sigmoid
    instead of being clamped; all layers share one pair per head.
    """

    name = "kerple"
    code = "chijames/KERPLE@25be3d7:megatron/mpu/layers.py"
    hooks = frozenset({"bias"})
    revision: ClassVar[int] = 2

    def __init__(self, width: int, heads: int, max_length: int, *, form: Form = "log", **common: Any) -> None:
        super().__init__(width, heads, max_length, **common)
        if form not in get_args(Form):
            raise UserError(f"position.form={form}: must be one of {', '.join(get_args(Form))}")
        self.form = form
        first, second = torch.rand(2, heads).clamp(min=0.01)
        # For log, softplus gives 2 first and second; for power, softplus gives first, and the sigmoid second.
        self.amount = nn.Parameter((2 * first if form == "log" else first).expm1().log())
        self.shape = nn.Parameter(second.expm1().log() if form == "log" else second.logit())

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return minus the kernel of the distance (1 or B, H, N, M)."""
        distance = behind(q_positions, k_positions).abs().to(self.amount.dtype)
        amount = F.softplus(self.amount)[:, None, None]
        if self.form == "log":
            return -amount * (F.softplus(self.shape)[:, None, None] * distance).log1p()
        return -amount * distance ** (2 * self.shape.sigmoid())[:, None, None]
