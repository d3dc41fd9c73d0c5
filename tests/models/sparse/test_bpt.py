"""BP-Transformer: the tree, attention of leaves to spans, and attention of spans to leaves."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.tree import BLOCK, edges, read_leaves, span_counts
from lra_bench.models.mixer import Padding
from tests.oracles.sparse import edges_of_leaf
from tests.support.mixer_cases import dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, randomise, task

CPU = torch.device("cpu")
either_way = pytest.mark.parametrize("causal", [False, True])


def sizes(n):
    """Return the sizes of all spans and leaves, in their order."""
    spans = [torch.full((count,), 2**level) for level, count in enumerate(span_counts(n), 1)]
    return torch.cat((*spans, torch.ones(n, dtype=torch.long)))


def spans_of_leaves(n, neighbours, causal, levels=3):
    """Yield, for each leaf, the first leaves, the sizes and the edge types of the spans that it attends to."""
    found, size = edges(n, neighbours, levels, causal, CPU), sizes(n)
    for leaf in range(n):
        block, own = divmod(leaf, BLOCK)
        seen = found.seen[block, own]
        yield found.starts[block][seen], size[found.rows[block][seen]], found.types[block, own][seen]


@either_way
@pytest.mark.parametrize("neighbours", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 33, 61, 100, 129])
def test_keys_of_a_leaf_tile_the_sequence(n, neighbours, causal):
    mixer = make("bpt", causal=causal, neighbours=neighbours)
    for leaf, parts in enumerate(spans_of_leaves(n, neighbours, causal)):
        covered = torch.zeros(n, dtype=torch.long)
        for start, size in zip(parts[0].tolist(), parts[1].tolist(), strict=True):
            covered[start : start + size] += 1
        assert torch.equal(covered, (torch.arange(n) <= leaf).long() if causal else torch.ones(n, dtype=torch.long))
        triples = sorted(zip(*(part.tolist() for part in parts), strict=True))
        assert triples == sorted(edges_of_leaf(mixer, leaf, n))


@pytest.mark.parametrize(("neighbours", "most"), [(1, 2), (4, 8), (8, 16)])
def test_edges_per_leaf_grow_logarithmically(neighbours, most):
    per_leaf = [edges(n, neighbours, 6, False, CPU).seen.sum((0, 1, 2)).item() / n for n in (256, 512, 1024)]
    for before, after in ((per_leaf[0], per_leaf[1]), (per_leaf[1], per_leaf[2])):
        assert 0.4 * most < after - before <= most


@either_way
def test_enough_neighbours_are_full_attention(causal):
    mixer, full, x = make("bpt", causal=causal, neighbours=61), make("transformer", causal=causal), rows(2, 61)
    torch.nn.init.zeros_(mixer.types)
    own = mixer.state_dict()
    full.load_state_dict({key: own[key] for key in full.state_dict()})
    assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12


@pytest.mark.parametrize("n", [1, 2, 3, 20, 64])
def test_spans_attend_to_their_leaves(n):
    lengths = [n, n // 2]
    spans = sum(span_counts(n))
    q, k, v = (rows(2, count, seed=seed)[:, None] for seed, count in enumerate((spans, n, n)))
    found = read_leaves(q, k, v, padding=Padding.from_lengths(torch.tensor(lengths), n), dropout=0)
    assert found.shape == (2, 1, spans, 16)
    for row, length in enumerate(lengths):
        place = 0
        for level, count in enumerate(span_counts(n), 1):
            for span in range(count):
                own = slice(span << level, min((span + 1) << level, length))
                expected = torch.zeros(16, dtype=q.dtype)
                if own.start < length:
                    expected = (k[row, 0, own] @ q[row, 0, place] / 4).softmax(0) @ v[row, 0, own]
                assert (found[row, 0, place] - expected).abs().max() < 1e-13
                place += 1
    if spans:
        root = torch.autograd.functional.jacobian(
            lambda k: read_leaves(q, k, v, padding=None, dropout=0)[:, :, -1].sum(-1)[0, 0], k
        )
        assert (root[0, 0].norm(dim=-1) > 0).all(), "the root attends to every leaf"


@either_way
@pytest.mark.parametrize("n", [1, 2, 33, 100])
def test_output_with_shared_keys_matches_the_definition(causal, n):
    mixer, x, lengths = make("bpt", causal=causal, kv_heads=1), rows(2, n), [n, (n + 1) // 2]
    found, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths):
        assert (found[row, :length] - expected[row, :length]).abs().max() < 1e-12


def test_one_layer_connects_all_tokens():
    mixer, x = make("bpt", neighbours=1), rows(1, 50)
    found = torch.autograd.functional.jacobian(lambda x: run(mixer, x).sum(-1)[0], x)[:, 0].norm(dim=-1)
    assert found.min() > 0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_spans_are_passed_through_the_layers(pooling):
    network, calls = randomise(model(task(length=40), "bpt", "none", pooling=pooling)), []
    for mixer in network.mixers:
        mixer.register_forward_hook(lambda mixer, given, result: calls.append((given[0], given[1].prefix, result[0])))
    logits = network(batch_for(task(length=40), (40, 23))).logits
    spans = sum(span_counts(40))
    assert [prefix for _, prefix, _ in calls] == [spans + (pooling == "cls")] * 2
    assert (calls[0][0][:, :spans] - calls[0][0][:, :1]).abs().max() == 0, "all spans have equal initial values"
    assert (calls[1][0][:, :spans] - calls[1][0][:, :1]).abs().max() > 1e-3
    assert logits.isfinite().all()
    if pooling == "cls":
        mixer, (x, _, y) = network.mixers[1], calls[1]
        q, (k, v) = (
            mixer.split(mixer.query(x[:, spans : spans + 1])),
            (mixer.split(part(x[:, spans + 1 :])) for part in (mixer.key, mixer.value)),
        )
        expected = mixer.merge((q @ k.mT * mixer.head_dim**-0.5).softmax(-1) @ v)
        assert (y[0, spans] - expected[0, 0]).abs().max() < 1e-12


def test_edges_are_cached_and_usable_in_training_after_evaluation():
    mixer, x = make("bpt", neighbours=3), rows(1, 77)
    with torch.inference_mode():
        run(mixer, x)
    cached = edges(77, 3, 3, False, CPU)
    run(mixer, x.requires_grad_()).sum().backward()
    assert edges(77, 3, 3, False, CPU) is cached and x.grad.isfinite().all()


@pytest.mark.parametrize("own", [{"neighbours": 0}, {"levels": 0}])
def test_invalid_options_are_rejected(own):
    with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}=0"):
        make("bpt", **own)
