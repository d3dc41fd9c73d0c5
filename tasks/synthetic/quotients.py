"""The largest abelian quotient of a finite group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def commutator_subgroup(table: NDArray[Any]) -> NDArray[np.int64]:
    """Return the ascending elements of the commutator subgroup of a group.

    The group modulo this subgroup is its largest abelian quotient: which coset contains a product is known from how
    often each element occurs in it, and each element of that coset has the same probability if all elements are equally
    frequent.

    Args:
        table: Multiplication table, (G, G): entry (a, b) is the product ab.

    Returns:
        The elements, (C,).
    """
    identity = int(np.flatnonzero((table == np.arange(len(table))).all(axis=1))[0])
    inverses = (table == identity).argmax(axis=1)
    members = np.unique(table[table, table[inverses[:, None], inverses]])  # all (ab)(a⁻¹b⁻¹)
    while len(products := np.unique(table[np.ix_(members, members)])) > len(members):
        members = products
    return members
