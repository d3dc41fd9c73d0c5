"""Optimizer hints of the parameters of state spaces."""

from __future__ import annotations

from lra_bench.contracts import UserError

SLOW = {"max_lr": 1e-3, "weight_decay": 0.0}
"""Hint of parameters that determine the dynamics of the state: a low learning rate, no weight decay."""


def own_rate(option: str, rate: float | None) -> dict[str, float]:
    """Return the hint for learning rate ``rate``, the value of ``option``; an empty hint if it is None.

    Raises ``UserError`` unless the rate is positive.
    """
    if rate is None:
        return {}
    if rate <= 0:
        raise UserError(f"model.mixer.{option}={rate}: must be positive, or null")
    return {"lr": float(rate)}
