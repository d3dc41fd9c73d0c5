"""The distribution of random ListOps trees, and the exact distribution of their lengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Trees:
    """A distribution of trees.

    Attributes:
        window: Lower and upper bound of the length in tokens, both exclusive.
        max_depth: Largest depth; that of a single digit is 1.
        max_arguments: Largest number of arguments of an operator; the smallest is 2.
        operator_probability: Probability that an argument is an operator instead of a digit, if the depth allows it.
    """

    window: tuple[int, int]
    max_depth: int
    max_arguments: int
    operator_probability: float

    def acceptance(self) -> float:
        """Return the exact probability that the length of a random tree with an operator as root is in the window."""
        low, high = self.window
        arguments = (self.max_depth, self.max_arguments, self.operator_probability)
        return float(length_distribution(high, *arguments)[low + 1 :].sum())


def length_distribution(
    size: int, max_depth: int, max_arguments: int, operator_probability: float
) -> NDArray[np.float64]:
    """Return the probability of each length 0 ... ``size`` - 1 of a tree whose root is an operator.

    The generating function of a node is p z² · mean_k(g^k) + (1 - p) z, in which g is that of its arguments. It is
    evaluated on a circle of radius below 1 and inverted by a finite Fourier transform; the radius damps the lengths
    beyond ``size`` that the transform aliases.

    Args:
        size: Number of lengths.
        max_depth: As in ``Trees``.
        max_arguments: As in ``Trees``.
        operator_probability: As in ``Trees``; p in the formula.

    Returns:
        Probabilities, (``size``,).
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
    probabilities = np.fft.ifft(operator).real / radius ** np.arange(points)
    return probabilities[:size].clip(0)
