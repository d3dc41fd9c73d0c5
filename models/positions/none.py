"""No position encoding: only the mixer can use the order of tokens."""

from __future__ import annotations

from .position import Position


class NoPosition(Position):
    """Add nothing; a bidirectional, permutation-equivariant mixer then treats a sequence as a bag of tokens.

    Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466.
    """

    name = "none"
