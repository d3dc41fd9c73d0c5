"""Random ListOps trees as a distribution, and the exact distribution of their lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Trees:
    """A distribution of trees: ``window`` bounds their length, both ends excluded."""

    window: tuple[int, int]
    max_depth: int
    max_arguments: int
    operator_probability: float

    def acceptance(self) -> float:
        """Share of random operator-rooted trees whose length lies in the window, exactly."""
        low, high = self.window
        arguments = (self.max_depth, self.max_arguments, self.operator_probability)
        return float(length_distribution(high, *arguments)[low + 1 :].sum())


def length_distribution(
    size: int, max_depth: int, max_arguments: int, operator_probability: float
) -> NDArray[np.float64]:
    """Probability of each length 0 ... ``size`` - 1 of a tree whose root is an operator.

    The generating function of a node is p z² · mean_k(g^k) + (1 - p) z with g that of its arguments. It is evaluated
    on a circle of radius below one, which damps the lengths beyond ``size`` that a finite transform folds back.
    """
    points = 1 << (2 * size - 1).bit_length()
    radius = 10.0 ** (-8.0 / points)
    z = radius * np.exp(-2j * np.pi * np.arange(points) / points)
    node = z
    operator = z
    for _ in range(max_depth - 1):
        power, total = node * node, np.zeros_like(z)
        for _ in range(2, max_arguments + 1):
            total += power
            power = power * node
        operator = z * z * total / (max_arguments - 1)
        node = operator_probability * operator + (1 - operator_probability) * z
    folded = np.fft.ifft(operator).real / radius ** np.arange(points)
    return folded[:size].clip(0)
