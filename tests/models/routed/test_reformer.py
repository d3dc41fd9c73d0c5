"""Reformer: sorting, locality-sensitive hashing, and attention within chunks."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.hashing import ONE_HASH, angular_buckets
from lra_bench.models.kernels.sorting import stable_order, take
from lra_bench.models.routed.reformer import Reformer
from tests.support.mixer_cases import HEADS, WIDTH, context, dense_output, make, rows, run


def hashed(mixer, q, chunks):
    return angular_buckets(q, mixer.directions, torch.full((len(q), 1, 1, 1), chunks), chunks)


class TestSorting:
    def test_order_and_its_inverse(self):
        keys = torch.randint(5, (2, 3, 40), generator=torch.Generator().manual_seed(0))
        order, inverse = stable_order(keys)
        ordered = keys.take_along_dim(order, -1)
        assert (ordered.diff() >= 0).all()
        assert (order.diff()[ordered.diff() == 0] > 0).all()
        assert torch.equal(ordered.take_along_dim(inverse, -1), keys)

    @pytest.mark.parametrize("shape", [(7,), (2, 5), (3, 2, 4)])
    def test_take_and_its_gradient_equal_gather(self, shape):
        x = torch.randn(2, 3, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
        places = torch.randint(9, (2, 3, *shape), generator=torch.Generator().manual_seed(1))
        index = places.flatten(2)[..., None].expand(-1, -1, -1, 4)
        results = [take(x, places), x.gather(2, index).view(*places.shape, 4)]
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
        assert torch.equal(*results)
        assert (gradients[0] - gradients[1]).abs().max() < 1e-12


class TestHash:
    def test_hash_ignores_the_norm_and_is_equal_for_equal_vectors(self):
        mixer, x = make("reformer"), rows(1, 20)
        q, _, _ = mixer.project(x)
        assert torch.equal(hashed(mixer, q, 50), hashed(mixer, 3.7 * q, 50))
        twice = hashed(mixer, torch.cat((q, q), 2), 50)
        assert torch.equal(twice[..., :20], twice[..., 20:])

    @pytest.mark.parametrize("chunks", [1, 2, 3, 8, 31, 32, 33, 60])
    def test_there_are_as_many_buckets_as_chunks(self, chunks):
        """The number is rounded to even numbers, and to products of two hashes if it is large."""
        mixer = make("reformer", chunk=50, rounds=1)
        q, _, _ = mixer.project(rows(1, 50 * chunks))
        found = hashed(mixer, q, chunks).unique().numel()
        most = chunks + chunks % 2 if chunks <= ONE_HASH else 1.3 * chunks + 4
        assert 0.7 * chunks <= found <= max(2, most)

    def test_similar_vectors_share_buckets_more_often(self):
        mixer = make("reformer", rounds=200)
        x = rows(1, 400)
        q, _, _ = mixer.project(x)
        buckets = [hashed(mixer, q + noise * q.roll(1, 2), 16) for noise in (0.0, 0.1, 0.5, 5.0)]
        same = [(buckets[0] == other).double().mean().item() for other in buckets]
        assert same[0] == 1 and same[0] > same[1] > same[2] > same[3] + 0.1


class TestAttention:
    @pytest.mark.parametrize(("chunk", "n"), [(64, 50), (25, 50), (31, 61), (100, 3), (1, 2)])
    @pytest.mark.parametrize("rounds", [1, 3])
    def test_up_to_two_chunks_are_full_attention_with_shared_keys(self, chunk, n, rounds):
        mixer, x = make("reformer", chunk=chunk, rounds=rounds), rows(2, n)
        q, k, v = mixer.project(x)
        scores = (q @ k.mT * mixer.head_dim**-0.5).masked_fill(torch.eye(n, dtype=torch.bool), -5e4)
        assert (run(mixer, x) - mixer.merge(scores.softmax(-1) @ v)).abs().max() < 1e-12

    @pytest.mark.parametrize(("chunk", "n", "rounds"), [(1, 61, 2), (2, 90, 1), (3, 61, 3), (8, 61, 1), (5, 150, 2)])
    def test_output_and_gradients_match_the_definition_with_many_buckets(self, chunk, n, rounds):
        mixer, lengths = make("reformer", chunk=chunk, rounds=rounds), [n, n // 2]
        zero = context(n, lengths).padding.zero
        gradients = []
        for compute in (run, lambda *case: dense_output(*case)[0]):
            x = rows(2, n).requires_grad_()
            y = zero(compute(mixer, x, lengths))
            gradients.append((y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])))
        for actual, expected in zip(*gradients, strict=True):
            assert (actual - expected).abs().max() < 1e-9

    def test_a_repeated_round_has_no_effect(self):
        one, two, x = make("reformer", rounds=1), make("reformer", rounds=2), rows(2, 61)
        two.load_state_dict({**one.state_dict(), "directions": one.directions.repeat(2, 1, 1, 1)})
        assert (run(one, x) - run(two, x)).abs().max() < 1e-12

    def test_a_single_token_attends_to_itself(self):
        mixer, x = make("reformer"), rows(2, 1)
        assert (run(mixer, x) - mixer.merge(mixer.project(x)[2])).abs().max() < 1e-12

    def test_sequences_of_a_batch_are_independent(self):
        mixer, x, lengths = make("reformer", chunk=3), rows(3, 61), [61, 30, 9]
        together = run(mixer, x, lengths)
        for row, length in enumerate(lengths):
            alone = run(mixer, x[row : row + 1, :length])
            assert (together[row, :length] - alone[0]).abs().max() < 1e-12

    def test_there_is_no_causal_form(self):
        with pytest.raises(UserError, match="no exact causal form"):
            make("reformer", causal=True)

    def test_invalid_options_are_rejected(self):
        for own in ({"chunk": 0}, {"rounds": 0}, {"redraw_every": -1}, {"kv_heads": 1}):
            with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
                make("reformer", **own)


def test_directions_depend_on_seed_layer_and_step():
    def after(steps, **own):
        mixer = Reformer(WIDTH, HEADS, **own)
        with torch.no_grad():
            for step in steps:
                mixer.after_step(step, {})
        return mixer.directions.clone()

    assert torch.equal(after([]), after([]))
    assert not torch.equal(after([]), after([], seed=1))
    assert not torch.equal(after([]), after([], layer=1))
    assert not torch.equal(after([]), after([0]))
    assert torch.equal(after([0, 1, 2]), after([2])), "directions of a resumed run differ"
    assert torch.equal(after([0, 1, 2], redraw_every=0), after([]))
    assert torch.equal(after([0, 1, 2, 3, 4], redraw_every=3), after([2]))
