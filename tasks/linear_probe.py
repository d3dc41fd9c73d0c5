"""Classifiers of scikit-learn on fixed features, as baselines without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

L2 = 0.01


def fitted(classifier: Any, features: Any, labels: NDArray[Any]) -> Any:
    """Fit a classifier of scikit-learn; if all labels are equal, return one that predicts this label."""
    from sklearn.dummy import DummyClassifier

    return (classifier if (labels != labels[0]).any() else DummyClassifier()).fit(features, labels)


def linear_probe(features: Any, labels: NDArray[Any]) -> Any:
    """Fit softmax regression, which minimises mean cross-entropy + ``L2`` / 2 times the sum of squared weights.

    Args:
        features: Numbers of any type, (R, F). They are standardised first.
        labels: Labels, (R,).

    Returns:
        The fitted pipeline of scikit-learn, deterministic.
    """
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = LogisticRegression(C=1 / (L2 * len(labels)), max_iter=300, tol=3e-3)
    return fitted(make_pipeline(StandardScaler(), regression), np.asarray(features, dtype=np.float32), labels)
