"""Floors (baselines without a model) of tasks on bytes of text: linear classifiers on bytes, words and n-grams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.data.cache import Advance
from lra_bench.data.examples import Examples

from ..linear_probe import fitted, linear_probe
from .bytes import byte_shares
from .ngrams import byte_counts, word_counts

PENALTY = 3.0  # parameter C of scikit-learn, for unit vectors
SIMILARITY = 3.0  # scale of the cosine similarity among the features of a pair


def correct_rows(
    train: Examples, rows: Examples, of_shares: Callable[[NDArray[np.float32]], NDArray[np.float32]], advance: Advance
) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of six rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``bag_of_bytes``: softmax regression on byte frequencies.
    ``naive_bayes_words`` and ``naive_bayes_bytes``: multinomial naive Bayes on which words and pairs of words, or
    sequences of five bytes, occur. ``linear_words`` and ``linear_bytes``: logistic regression on their tf-idf weights.
    For two documents the last four are fitted on the products of the two: n-grams that occur in both. The regressions
    also use the cosine similarity, which is the sum of the products.

    Args:
        train: Training examples.
        rows: Examples to classify.
        of_shares: Function that returns features (R, F) from byte frequencies (R, 256) or (R, 2, 256).
        advance: Called with the number of training examples after each of three steps.

    Returns:
        The columns.
    """
    labels = train.targets
    shares, rows_shares = (of_shares(byte_shares(part)) for part in (train, rows))
    guesses = {
        "majority": np.full(len(rows), np.bincount(labels).argmax()),
        "bag_of_bytes": linear_probe(shares, labels).predict(rows_shares),
    }
    advance(len(train))
    for unit, count in (("words", word_counts), ("bytes", byte_counts)):
        guesses |= _n_gram_rules(unit, count(train), labels, count(rows), train.lengths.ndim)
        advance(len(train))
    return {rule: guess == rows.targets for rule, guess in guesses.items()}


def share_features(shares: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return byte frequencies (R, 256) unchanged, or absolute differences and products of those of pairs: (R, 512)."""
    if shares.ndim == 2:
        return shares
    first, second = shares[:, 0], shares[:, 1]
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def _n_gram_rules(
    unit: str, train: Any, labels: NDArray[np.int64], rows: Any, documents: int
) -> dict[str, NDArray[np.int64]]:
    """Return the predictions of naive Bayes and logistic regression from counts of n-grams, a row per document."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.preprocessing import normalize

    def paired(weights: Any) -> Any:
        return weights[::2].multiply(weights[1::2]).tocsr() if documents == 2 else weights

    def scaled(counts: Any) -> Any:
        weights = paired(weighting.transform(counts))
        if documents == 1:
            return weights
        return hstack([normalize(weights), SIMILARITY * weights.sum(axis=1).reshape(-1, 1)]).tocsr()

    bayes = MultinomialNB().fit(paired(train.sign()), labels)
    weighting = TfidfTransformer(sublinear_tf=True).fit(train)
    regression = LogisticRegression(C=PENALTY, solver="liblinear")
    several = len(np.unique(labels)) > 2  # liblinear fits two classes only
    logistic = fitted(OneVsRestClassifier(regression) if several else regression, scaled(train), labels)
    return {
        f"naive_bayes_{unit}": bayes.predict(paired(rows.sign())),
        f"linear_{unit}": logistic.predict(scaled(rows)),
    }
