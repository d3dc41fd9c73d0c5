"""The largest abelian quotient, compared with all homomorphisms to cyclic groups."""

from itertools import permutations, product

import numpy as np
import pytest

from lra_bench.tasks.synthetic.groups import multiplication_table
from lra_bench.tasks.synthetic.quotients import commutator_subgroup


def table_of(elements, times):
    """Return the multiplication table of elements; the identity has a number other than 0."""
    elements = elements[::-1]
    return np.array([[elements.index(times(a, b)) for b in elements] for a in elements])


def quaternions():
    """Return the table of Q8 from signs and the units 1, i, j, k."""
    units = (
        {(0, n): (1, n) for n in range(4)} | {(n, 0): (1, n) for n in range(4)} | {(n, n): (-1, 0) for n in (1, 2, 3)}
    )
    for a, b, c in ((1, 2, 3), (2, 3, 1), (3, 1, 2)):
        units |= {(a, b): (1, c), (b, a): (-1, c)}

    def times(a, b):
        sign, unit = units[a[1], b[1]]
        return a[0] * b[0] * sign, unit

    return table_of(list(product((1, -1), range(4))), times)


def dihedral(corners):
    """Return the table of the symmetries of a polygon, (rotation, reflection)."""
    elements = list(product(range(corners), range(2)))
    return table_of(elements, lambda a, b: ((a[0] + (-1) ** a[1] * b[0]) % corners, (a[1] + b[1]) % 2))


GROUPS = {
    "S3": (multiplication_table("s3"), 3),
    "Z5": (table_of(list(range(5)), lambda a, b: (a + b) % 5), 1),
    "Q8": (quaternions(), 2),
    "A4": (multiplication_table("a4"), 4),
    "D4": (dihedral(4), 2),
    "D5": (dihedral(5), 5),
}
"""Table and size of the commutator subgroup of each group."""


def kernels(table):
    """Yield the kernels of all homomorphisms to the cyclic group of as many elements.

    An assignment to generators is extended to all elements as products of generators, and kept if it is consistent.
    """
    size = len(table)
    generators = smallest_generators(table)
    for images in product(range(size), repeat=len(generators)):
        value = dict(zip(generators, images, strict=True))
        reached = list(value)
        for a in reached:
            for b in generators:
                if table[a, b] not in value:
                    value[table[a, b]] = (value[a] + value[b]) % size
                    reached.append(table[a, b])
        image = np.array([value[a] for a in range(size)])
        if (image[table] == (image[:, None] + image) % size).all():
            yield set(np.flatnonzero(image == 0).tolist())


def smallest_generators(table):
    """Return one or two elements whose products are all elements."""
    for pair in [(a,) for a in range(len(table))] + list(permutations(range(len(table)), 2)):
        reached = list(pair)
        for a in reached:
            reached += [table[a, b] for b in pair if table[a, b] not in reached]
        if len(set(reached)) == len(table):
            return pair
    raise AssertionError("the group needs more than two generators")


@pytest.mark.parametrize("name", GROUPS)
def test_commutator_subgroup_is_the_common_kernel_of_all_homomorphisms_to_cyclic_groups(name):
    table, size = GROUPS[name]
    members = commutator_subgroup(table)
    assert len(members) == size
    assert set(members.tolist()) == set.intersection(*kernels(table))


@pytest.mark.parametrize(("group", "size"), [("a5", 60), ("s5", 60), ("z2", 1), ("z2*s3", 3)])
def test_commutator_subgroups_of_named_groups_have_the_known_size(group, size):
    assert len(commutator_subgroup(multiplication_table(group))) == size
