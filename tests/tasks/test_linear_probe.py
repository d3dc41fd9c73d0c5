"""Tests of softmax regression: optimality conditions, accuracy at chance on noise."""

import numpy as np
import pytest

from lra_bench.tasks.linear_probe import L2, fit, probe_correct, standardised


def sample(rows, features, classes, seed):
    """Return random features and labels sampled from a random linear model, so that classes overlap."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features)) @ generator.normal(size=(features, features))
    rule = generator.normal(size=(features, classes))
    logits = standardised(x, x.mean(0), x.std(0))[:, :-1] @ rule
    return x, (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)


def gradient_at(probe, x, y, classes, l2):
    """Compute the gradient of the objective in double precision, independently of the implementation."""
    rows = np.hstack([(x - x.mean(0)) / x.std(0), np.ones((len(x), 1))])
    logits = rows @ probe.weights
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    penalty = np.full((rows.shape[1], 1), l2)
    penalty[-1] = 0
    return rows.T @ (probabilities - np.eye(classes)[y]) / len(rows) + penalty * probe.weights


@pytest.mark.parametrize(("classes", "features", "l2"), [(2, 3, L2), (10, 40, L2), (4, 12, 1e-4)])
def test_fit_reaches_the_optimum(classes, features, l2):
    x, y = sample(5000, features, classes, seed=classes)
    probe = fit(x, y, classes, l2)
    assert np.abs(gradient_at(probe, x, y, classes, l2)).max() < 1e-4
    assert np.abs(probe.weights).max() > 0.1


def test_fit_converges_for_correlated_features_of_different_scales():
    generator = np.random.default_rng(0)
    common = generator.normal(size=(3000, 1))
    features = common + 0.01 * generator.normal(size=(3000, 60))
    x = features * np.logspace(-3, 4, 60) + 1e4
    y = (features[:, 5] - features[:, 40] + 0.005 * generator.normal(size=3000) > 0).astype(int)
    assert np.abs(gradient_at(fit(x, y, 2), x, y, 2, L2)).max() < 1e-4


def test_separable_classes_are_separated():
    generator = np.random.default_rng(1)
    y = generator.integers(0, 5, 600)
    x = np.eye(5)[y] * 8 + generator.normal(size=(600, 5))
    assert probe_correct(x[:400], y[:400], x[400:], y[400:], 5).mean() > 0.98


def test_accuracy_on_noise_is_chance():
    generator = np.random.default_rng(2)
    x, y = generator.integers(0, 256, (6000, 20)), generator.integers(0, 4, 6000)
    accuracy = probe_correct(x[:3000], y[:3000], x[3000:], y[3000:], 4).mean()
    assert abs(accuracy - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 3000)


def test_constant_features_and_absent_classes_have_no_effect():
    x, y = sample(900, 6, 3, seed=3)
    constant = np.full((900, 2), 1 / 3)
    with_constants = fit(np.hstack([x, constant]), y, 5)
    without = fit(x, y, 5)
    assert np.allclose(with_constants.weights[:6], without.weights[:6], atol=1e-3)
    assert np.abs(with_constants.weights[6:8]).max() < 1e-3
    assert without.predict(x).max() < 3


def test_uint8_features_equal_float_features():
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 256, (500, 8), dtype=np.uint8), generator.integers(0, 3, 500)
    x[:, 0] = y * 100
    assert np.array_equal(fit(x, y, 3).weights, fit(x.astype(np.float64), y, 3).weights)
    assert np.array_equal(fit(x, y, 3).weights, fit(x, y, 3).weights)
