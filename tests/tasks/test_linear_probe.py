"""Tests of softmax regression: optimality conditions, accuracy at chance on noise."""

import numpy as np
import pytest

from lra_bench.tasks.linear_probe import L2, linear_probe


def sample(rows, features, classes, seed):
    """Return random features and labels sampled from a random linear model, so that classes overlap."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features)) @ generator.normal(size=(features, features))
    logits = (x - x.mean(0)) / x.std(0) @ generator.normal(size=(features, classes))
    return x, (logits + generator.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.mark.parametrize(("classes", "features"), [(3, 8), (10, 40)])
def test_fit_is_close_to_the_optimum_for_features_of_any_scale(classes, features):
    x, y = sample(5000, features, classes, seed=classes)
    probe = linear_probe(x * np.logspace(-3, 3, features) + 100, y)
    rows, weights = (x - x.mean(0)) / x.std(0), probe[-1].coef_
    logits = rows @ weights.T + probe[-1].intercept_
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    gradient = (probabilities - np.eye(classes)[y]).T @ rows / len(rows) + L2 * weights
    assert np.abs(gradient).max() < 3e-3
    assert np.abs(weights).max() > 0.1


def test_separable_classes_are_separated():
    generator = np.random.default_rng(1)
    y = generator.integers(0, 5, 600)
    x = np.eye(5)[y] * 8 + generator.normal(size=(600, 5))
    assert linear_probe(x[:400], y[:400]).score(x[400:], y[400:]) > 0.98


def test_accuracy_on_noise_is_chance():
    generator = np.random.default_rng(2)
    x, y = generator.integers(0, 256, (6000, 20)), generator.integers(0, 4, 6000)
    accuracy = linear_probe(x[:3000], y[:3000]).score(x[3000:], y[3000:])
    assert abs(accuracy - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 3000)


def test_equal_labels_are_predicted():
    assert linear_probe(np.arange(6).reshape(3, 2), np.full(3, 4)).predict(np.ones((2, 2))).tolist() == [4, 4]


def test_two_fits_are_equal_and_independent_of_the_type():
    generator = np.random.default_rng(4)
    x, y = generator.integers(0, 256, (500, 8), dtype=np.uint8), generator.integers(0, 3, 500)
    x[:, 0] = y * 100
    first, second, floats = linear_probe(x, y), linear_probe(x, y), linear_probe(x.astype(np.float64), y)
    assert np.array_equal(first[-1].coef_, second[-1].coef_)
    assert np.array_equal(first[-1].coef_, floats[-1].coef_)
