"""Losses by number of tokens read: bins that contain every position once, compared with counting by position."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.measurements.contexts import bins, loss_by_position


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 3000))
def test_bins_are_consecutive_and_one_ends_at_the_training_length(context, train_length):
    found = bins(context, train_length)
    assert found[0][0] == 1 and found[-1][1] == context
    assert all(first <= last for first, last in found)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(found))
    if context >= train_length:
        assert train_length in {last for _, last in found}


def test_bins_are_half_doublings():
    assert bins(16, 8) == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 11), (12, 16)]


def test_every_loss_is_counted_once():
    generator = np.random.default_rng(0)
    seen, losses = generator.integers(1, 65, 3000), generator.random(3000)
    table = loss_by_position(losses, seen, 64, 32)
    assert sum(n for _, _, n, _ in table) == 3000
    for first, last, n, bits in table:
        inside = [loss for loss, count in zip(losses, seen, strict=True) if first <= count <= last]
        assert n == len(inside)
        assert bits == pytest.approx(sum(inside) / n / math.log(2))


def test_empty_bin_is_left_out():
    assert loss_by_position(np.array([1.0]), np.array([4]), 8, 8) == [(4, 4, 1, pytest.approx(1 / math.log(2)))]
