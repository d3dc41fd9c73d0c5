"""Softmax regression, held against what its optimum and chance must be."""

import numpy as np
import pytest

from lra_bench.tasks.linear_probe import L2, fit, probe_accuracy, standardised


def drawn(rows, features, classes, seed):
    """Rows drawn around a random linear rule, so that classes overlap."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features)) @ generator.normal(size=(features, features))
    rule = generator.normal(size=(features, classes))
    logits = standardised(x, x.mean(0), x.std(0))[:, :-1] @ rule
    return x, (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)


def gradient_at(probe, x, y, classes, l2):
    """The objective's gradient in double precision, written down anew."""
    rows = np.hstack([(x - x.mean(0)) / x.std(0), np.ones((len(x), 1))])
    logits = rows @ probe.weights
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    penalty = np.full((rows.shape[1], 1), l2)
    penalty[-1] = 0
    return rows.T @ (shares - np.eye(classes)[y]) / len(rows) + penalty * probe.weights


@pytest.mark.parametrize(("classes", "features", "l2"), [(2, 3, L2), (10, 40, L2), (4, 12, 1e-4)])
def test_it_ends_at_the_optimum(classes, features, l2):
    x, y = drawn(5000, features, classes, seed=classes)
    probe = fit(x, y, classes, l2)
    assert np.abs(gradient_at(probe, x, y, classes, l2)).max() < 1e-4
    assert np.abs(probe.weights).max() > 0.1


def test_correlated_features_of_far_scales_converge_too():
    generator = np.random.default_rng(0)
    common = generator.normal(size=(3000, 1))
    apart = common + 0.01 * generator.normal(size=(3000, 60))
    x = apart * np.logspace(-3, 4, 60) + 1e4
    y = (apart[:, 5] - apart[:, 40] + 0.005 * generator.normal(size=3000) > 0).astype(int)
    assert np.abs(gradient_at(fit(x, y, 2), x, y, 2, L2)).max() < 1e-4


def test_separable_classes_are_separated():
    generator = np.random.default_rng(1)
    y = generator.integers(0, 5, 600)
    x = np.eye(5)[y] * 8 + generator.normal(size=(600, 5))
    assert probe_accuracy(x[:400], y[:400], x[400:], y[400:], 5) > 0.98


def test_noise_gives_chance():
    generator = np.random.default_rng(2)
    x, y = generator.integers(0, 256, (6000, 20)), generator.integers(0, 4, 6000)
    accuracy = probe_accuracy(x[:3000], y[:3000], x[3000:], y[3000:], 4)
    assert abs(accuracy - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 3000)


def test_constant_features_and_absent_classes_do_no_harm():
    x, y = drawn(900, 6, 3, seed=3)
    constant = np.full((900, 2), 1 / 3)
    with_constants = fit(np.hstack([x, constant]), y, 5)
    without = fit(x, y, 5)
    assert np.allclose(with_constants.weights[:6], without.weights[:6], atol=1e-3)
    assert np.abs(with_constants.weights[6:8]).max() < 1e-3
    assert without.predict(x).max() < 3


def test_bytes_are_read_as_their_numbers():
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 256, (500, 8), dtype=np.uint8), generator.integers(0, 3, 500)
    x[:, 0] = y * 100
    assert np.array_equal(fit(x, y, 3).weights, fit(x.astype(np.float64), y, 3).weights)
    assert np.array_equal(fit(x, y, 3).weights, fit(x, y, 3).weights)
