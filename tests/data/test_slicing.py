"""Slices from numbers: every target is in the slice whose label contains its number."""

import re
from itertools import pairwise

import numpy as np
import pytest

from lra_bench.data.slicing import by_value, in_bins


def bounds(label):
    first, _, last = label.replace(",", "").partition("–")
    return int(first), int(last or first)


@pytest.mark.parametrize("seed", range(20))
def test_bins_contain_their_values_and_have_equal_ratios(seed):
    generator = np.random.default_rng(seed)
    bins = int(generator.integers(1, 8))
    values = generator.integers(1, 4 ** generator.integers(1, 7), int(generator.integers(1, 300)))
    labels, index = in_bins(values, bins)
    spans = [bounds(label) for label in labels]
    for value, number in zip(values, index, strict=True):
        assert spans[number][0] <= value <= spans[number][1]
    assert sorted(set(index.tolist())) == list(range(len(labels))) and len(labels) <= bins
    assert all(last < first for (_, last), (first, _) in pairwise(spans))
    ratio = ((values.max() + 1) / values.min()) ** (1 / bins)
    for first, last in spans:
        # Bounds are rounded up to integers, so a bin can be wider than the ratio by less than one integer.
        assert last + 1 < first * ratio + 1 + 1e-6 or first == last


def test_bins_of_powers_are_powers():
    labels, _ = in_bins(np.arange(1, 1296))
    assert list(labels) == ["1–5", "6–35", "36–215", "216–1,295"]
    assert in_bins(np.array([], dtype=np.int64)).labels == []
    with pytest.raises(ValueError, match="value 0 is not positive"):
        in_bins(np.array([0, 1]))


def test_values_are_labels_in_increasing_or_given_order():
    values = np.array([16, 2, 2, 1000])
    labels, index = by_value(values)
    assert list(labels) == ["2", "16", "1,000"] and [labels[number] for number in index] == ["16", "2", "2", "1,000"]
    labels, index = by_value(np.array([0, 2, 0]), {2: "MED", 1: "MAX", 0: "MIN"})
    assert list(labels) == ["MED", "MIN"] and index.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=re.escape("value 3 has no name")):
        by_value(np.array([3]), {1: "one"})
