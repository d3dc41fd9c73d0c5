"""Hashed n-grams and the rules on them, compared with plain counting."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.tasks.documents.bytes import joined, to_tokens
from lra_bench.tasks.documents.floors import correct_rows
from lra_bench.tasks.documents.ngrams import BUCKETS, BYTES_PER_GRAM, byte_counts, word_counts

WORDS = ["Good", "good", "bad!", "très", "x9", "<br />", "", "a", "it's"]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), min_size=1, max_size=6)


def examples(documents, labels=None, pairs=False):
    """Return examples of one document each, or of two consecutive ones."""
    tokens = [to_tokens(document.encode()) for document in documents]
    rows = [tokens[start : start + 1 + pairs] for start in range(0, len(tokens), 1 + pairs)]
    return joined(rows, np.zeros(len(rows), dtype=np.int64) if labels is None else np.array(labels))


def words_of(text):
    """Return words and pairs of consecutive words of a text."""
    words = re.findall(rb"[a-z0-9\x80-\xff]+", text.encode().lower())
    return Counter([*words, *pairwise(words)])


def grams_of(text):
    """Return all sequences of ``BYTES_PER_GRAM`` bytes of a text."""
    content = text.encode()
    return Counter(content[at : at + BYTES_PER_GRAM] for at in range(len(content) - BYTES_PER_GRAM + 1))


@given(texts)
@settings(max_examples=30, deadline=None)
def test_hashed_counts_equal_plain_counts(documents):
    for count, plain in ((word_counts, words_of), (byte_counts, grams_of)):
        counts, expected = count(examples(documents)), [plain(document) for document in documents]
        column: dict = {}
        for row, each in enumerate(expected):
            assert sorted(counts[row].data) == sorted(each.values())
            single = count(examples([documents[row]]))
            assert (single != counts[row]).nnz == 0
            for gram in each:
                column.setdefault(gram, set()).add(row)
        assert counts.sum() == sum(each.total() for each in expected)
        # Each column contains the documents of one n-gram.
        found = Counter(tuple(np.unique(counts[:, key].nonzero()[0])) for key in np.unique(counts.indices))
        assert found == Counter(tuple(sorted(rows)) for rows in column.values())


def naive_bayes(train, labels, rows):
    """Return predictions of multinomial naive Bayes on the presence of words, in plain float64; one for smoothing."""
    scores = []
    for label in (0, 1):
        own = [text for text, each in zip(train, labels, strict=True) if each == label]
        present = Counter(word for text in own for word in words_of(text))
        total = present.total() + BUCKETS
        prior = np.log(labels.count(label) / len(labels))
        scores.append([prior + sum(np.log((present[word] + 1) / total) for word in words_of(text)) for text in rows])
    return np.argmax(scores, axis=0)


def draw_documents(seed, count):
    """Return documents whose words depend on the label, and the labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count).tolist()
    vocabulary = np.array([f"w{number}" for number in range(60)])
    weights = np.stack([np.linspace(1, 3, 60), np.linspace(3, 1, 60)])
    return [
        " ".join(generator.choice(vocabulary, 12, p=weights[label] / weights[label].sum())) for label in labels
    ], labels


def test_naive_bayes_equals_plain_float64():
    (train, labels), (rows, targets) = draw_documents(0, 200), draw_documents(1, 100)
    found = correct_rows(examples(train, labels), examples(rows, targets), lambda shares: shares, lambda count: None)
    expected = naive_bayes(train, labels, rows) == targets
    assert set(found) == {
        "majority",
        "bag_of_bytes",
        "naive_bayes_words",
        "naive_bayes_bytes",
        "linear_words",
        "linear_bytes",
    }
    assert np.array_equal(found["naive_bayes_words"], expected) and 0.5 < expected.mean() < 0.95
    assert found["linear_words"].mean() > 0.55


def test_rules_on_pairs_compare_the_documents():
    generator = np.random.default_rng(2)
    documents, labels = [], []
    for label in generator.integers(0, 2, 300).tolist():
        words = [f"w{number}" for number in generator.permutation(400)[:24]]
        documents += [" ".join(words[:12]), " ".join(words[6:18] if label else words[12:])]
        labels.append(label)
    train, test = (
        examples(documents[2 * part.start : 2 * part.stop], labels[part], pairs=True)
        for part in (slice(0, 200), slice(200, 300))
    )
    found = correct_rows(train, test, lambda shares: shares[:, 0] * shares[:, 1], lambda count: None)
    assert found["linear_words"].mean() > 0.9 and found["linear_bytes"].mean() > 0.9
