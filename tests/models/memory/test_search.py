"""Exact search of nearest neighbours, compared with all distances at once."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.memory import search
from lra_bench.models.memory.search import Index, largest


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=[(1024, 16_384, 64), (7, 90, 4)])
def blocks(request, monkeypatch):
    """Run a test with blocks larger than the data, and with several small blocks."""
    for name, size in zip(("QUERIES_AT_ONCE", "KEYS_AT_ONCE", "GROUP"), request.param, strict=True):
        monkeypatch.setattr(search, name, size)


@pytest.mark.parametrize("k", [1, 5, 200])
def test_search_equals_all_distances(blocks, k):
    keys, queries = draw(200, 6), draw(23, 6, seed=1)
    distances, ids = Index(keys).search(queries, k)
    expected = (queries[:, None] - keys).square().sum(-1).sort(dim=-1)
    assert torch.equal(ids, expected.indices[:, :k])
    assert (distances - expected.values[:, :k]).abs().max() < 1e-12


def test_search_marks_places_without_a_key(blocks):
    distances, ids = Index(draw(3, 2)).search(draw(9, 2, seed=1), 5)
    assert (ids[:, 3:] == -1).all() and distances[:, 3:].isinf().all()
    assert (ids[:, :3].sort().values == torch.arange(3)).all()


def test_hidden_keys_are_never_found(blocks):
    keys = draw(150, 3)
    distances, ids = Index(keys).search(keys, 4, hidden=lambda queries, places: places == queries)
    assert (ids != torch.arange(150)[:, None]).all() and (ids >= 0).all()
    everything = Index(keys).search(keys, 5)
    assert torch.equal(ids, everything[1][:, 1:]) and torch.equal(distances, everything[0][:, 1:])


def test_queries_close_to_their_key_keep_all_digits():
    keys = draw(50, 4) + 1e6
    assert Index(keys).search(keys, 1)[0].max() == 0


@pytest.mark.parametrize(("length", "k"), [(64, 3), (1000, 1), (1001, 3), (1024, 7)])
def test_largest_is_exact(length, k):
    scores = draw(5, 2, length)
    assert all(torch.equal(*pair) for pair in zip(largest(scores, k), scores.topk(k), strict=True))


def test_unknown_backend():
    with pytest.raises(UserError, match=r"model\.retrieval\.backend=annoy"):
        Index(draw(3, 2), "annoy")


def test_faiss_finds_the_same_keys():
    pytest.importorskip("faiss", reason="faiss-cpu is not installed (extra retrieval)")
    keys, queries = draw(500, 8).float(), draw(40, 8, seed=1).float()
    assert torch.equal(Index(keys, "faiss").search(queries, 6)[1], Index(keys).search(queries, 6)[1])


def test_missing_faiss_is_reported(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(UserError, match="faiss-cpu is not installed"):
        Index(draw(3, 2), "faiss")
