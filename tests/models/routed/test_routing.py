"""Routing Transformer: clusters, updates of centroids, padding and empty clusters."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import UserError
from lra_bench.models.routed import routing as module
from lra_bench.models.routed.centroids import Centroids
from lra_bench.training.loop import after_step, stepped_modules
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, task


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def centroids(*shape, decay=0.9, seed=0):
    return Centroids(shape, decay, torch.Generator().manual_seed(seed)).double()


def alone(n, **own):
    """Return a mixer whose heads all route, and an input for it."""
    return make("routing", local_heads=0, **own), rows(2, n)


class TestCentroids:
    def test_the_first_step_moves_to_the_mean_and_later_ones_average(self):
        moving = centroids(1, 2, 2, decay=0.75)
        moving.means.copy_(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
        first = torch.tensor([[[[3.0, 1.0], [5.0, -1.0], [0.0, 2.0]]]], dtype=torch.float64)
        found = moving.members(first)
        assert found["counts"].tolist() == [[2, 1]] and found["sums"].tolist() == [[[8, 0], [0, 2]]]
        moving.after_step(0, found)
        assert (moving.means - torch.tensor([[[4.0, 0.0], [0.0, 2.0]]])).abs().max() < 1e-12
        second = torch.tensor([[[[7.0, 0.0]]]], dtype=torch.float64)
        moving.after_step(1, moving.members(second))
        # Sums 0.75 · 0.25 · 8 + 0.25 · 7 over counts 0.75 · 0.25 · 2 + 0.25; the empty one keeps its mean.
        expected = torch.tensor([[[3.25 / 0.625, 0.0], [0.0, 2.0]]], dtype=torch.float64)
        assert (moving.means - expected).abs().max() < 1e-12

    def test_empty_centroids_keep_their_means(self):
        """A centroid that never had, or no longer has, vectors keeps its mean when its moving count decays to zero."""
        moving = centroids(1, 3, 4, decay=0.5)
        initial = moving.means.clone()
        moving.after_step(0, moving.members(2 * initial[:, None, 1:2]))
        for step in range(1, 1500):
            moving.after_step(step, moving.members(3 * initial[:, None, :1]))
        expected = initial * torch.tensor([3.0, 2.0, 1.0])[:, None]
        assert (moving.means - expected).abs().max() < 1e-9 and moving.counts[0, 1] < 1e-30

    def test_empty_statistics_change_nothing(self):
        moving = centroids(1, 3, 4)
        before = {key: value.clone() for key, value in moving.state_dict().items()}
        moving.after_step(0, {})
        assert all(torch.equal(value, before[key]) for key, value in moving.state_dict().items())

    def test_centroids_converge_to_clusters(self):
        truth, moving = torch.arange(400) % 4, centroids(1, 8, 6)
        x = F.layer_norm(draw(4, 6, seed=1)[truth] + 0.05 * draw(400, 6, seed=2), (6,))[None, None]
        for step in range(5):
            moving.after_step(step, moving.members(x))
        for label in range(4):
            distance = (moving.means[0] - x[0, 0, truth == label].mean(0)).norm(dim=-1)
            assert distance.min() < 0.5

    def test_initial_centroids_have_fixed_norm_and_depend_on_the_generator(self):
        assert (centroids(2, 5, 6).means.norm(dim=-1) - 6**0.5).abs().max() < 1e-3
        assert torch.equal(centroids(2, 5, 6).means, centroids(2, 5, 6).means)
        assert not torch.equal(centroids(2, 5, 6).means, centroids(2, 5, 6, seed=1).means)


class TestAttention:
    @pytest.mark.parametrize("n", [1, 20])
    def test_one_cluster_is_full_attention_of_normalised_queries_and_keys(self, n):
        mixer, x = alone(n, clusters=1)
        q, k, v = mixer.project(x)
        assert n == 1 or (q.norm(dim=-1) - 8**0.5).abs().max() < 1e-3
        expected = mixer.merge((q @ k.mT * 8**-0.5).softmax(-1) @ v)
        assert (run(mixer, x) - expected).abs().max() < 1e-12

    def test_every_cluster_has_equally_many_distinct_queries_and_keys(self, monkeypatch):
        (mixer, x), seen = alone(60, clusters=7), []
        original = module.take
        monkeypatch.setattr(module, "take", lambda x, places: seen.append(places) or original(x, places))
        run(mixer, x)
        for places in seen:
            assert places.shape == (2, 2, 7, 9)
            assert (places.sort(-1).values.diff() > 0).all()

    def test_separated_groups_attend_within_themselves(self):
        """With centroids at well-separated groups of tokens, tokens attend only within their group."""
        mixer, truth = alone(1, clusters=4)[0], torch.arange(40) % 4
        q, k, v = (draw(1, 2, 40, 8, seed=s) for s in range(3))
        centres = F.layer_norm(draw(2, 4, 8, seed=7), (8,))
        mixer.centroids.means.copy_(centres)
        q, k = (F.layer_norm(50 * centres[:, truth] + x, (8,)) for x in (q, k))
        block = truth[:, None] == truth
        expected = (q @ k.mT * 8**-0.5).masked_fill(~block, -torch.inf).softmax(-1) @ v
        assert (mixer.attend(q, k, v, context(40)) - expected).abs().max() < 1e-12

    def test_outputs_are_zero_in_no_cluster_and_averaged_over_several(self):
        mixer, x = alone(40, clusters=8)
        q, k, v = mixer.project(x)
        o = mixer.attend(q, k, v, context(40))
        size, memberships = 5, torch.zeros(2, 2, 40)
        similarity = mixer.centroids.means @ q.mT
        memberships.scatter_add_(-1, similarity.topk(size, -1).indices.flatten(2), torch.ones(2, 2, 40))
        assert (memberships == 0).any() and (memberships > 1).any()
        assert o[memberships == 0].abs().max() == 0
        assert (mixer.attend(q, k, torch.ones_like(v), context(40))[memberships > 0] - 1).abs().max() < 1e-12

    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_the_first_heads_are_local(self, dropout):
        mixer, x = make("routing", window=2, dropout=dropout), rows(1, 40).requires_grad_()
        q, k, v = mixer.project(x)
        o = mixer.attend(q, k, v, context(40))
        (gradient,) = torch.autograd.grad(o[0, 0, 20].sum(), v)
        reached = gradient[0].abs().amax(-1) > 0
        assert not reached[1].any() and not reached[0, :18].any() and not reached[0, 23:].any()
        assert dropout or reached[0, 18:23].all()

    @pytest.mark.parametrize("clusters", [1, 3, 8, 50])
    def test_output_and_gradients_match_the_definition(self, clusters):
        mixer, lengths, gradients = make("routing", clusters=clusters), [40, 17, 1], []
        for compute in (run, lambda *case: dense_output(*case)[0]):
            x = rows(3, 40).requires_grad_()
            y = context(40, lengths).padding.zero(compute(mixer, x, lengths))
            gradients.append((y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])))
        for actual, expected in zip(*gradients, strict=True):
            assert (actual - expected).abs().max() < 1e-9

    def test_sequences_of_a_batch_are_independent(self):
        mixer, x, lengths = make("routing"), rows(3, 61), [61, 30, 4]
        together = run(mixer, x, lengths)
        for row, length in enumerate(lengths):
            assert (together[row, :length] - run(mixer, x[row : row + 1, :length])[0]).abs().max() < 1e-12

    def test_positions_do_not_affect_routing(self):
        """If rotated queries were routed, clusters would depend on positions."""
        mixer, x = alone(30, clusters=6)
        q, k, v = mixer.project(x)
        untouched = mixer.attend(q, k, v, context(30))
        mixer.apply_rotation = lambda q, k, unused: (torch.zeros_like(q), k)  # all scores equal
        zero = mixer.attend(q, k, v, context(30))
        assert torch.equal(untouched == 0, zero == 0) and (untouched - zero).abs().max() > 0.1


class TestStatistics:
    def test_statistics_are_reported_in_training_without_padding(self):
        mixer, x = make("routing"), rows(2, 40)
        assert not mixer(x, context(40))[1].statistics
        mixer.train()
        found = mixer(x, context(40, [40, 13]))[1].statistics["centroids"]
        assert found["counts"].sum() == 2 * 53
        parts = [mixer(x[:1], context(40))[1], mixer(x[1:, :13], context(13))[1]]
        for key, value in found.items():
            assert not value.requires_grad
            assert (value - sum(part.statistics["centroids"][key] for part in parts)).abs().max() < 1e-10

    def test_statistics_are_of_queries_and_keys_of_routed_heads(self):
        mixer, x = make("routing", clusters=4).train(), rows(2, 40)
        q, k, _ = mixer.project(x)
        sums, counts = torch.zeros(4, 8, dtype=x.dtype), torch.zeros(4)
        for token in torch.cat((q[:, 1], k[:, 1])).flatten(0, 1):
            nearest = (mixer.centroids.means[0] @ token).argmax()
            sums[nearest] += token
            counts[nearest] += 1
        found = mixer(x, context(40))[1].statistics["centroids"]
        assert (found["sums"][0] - sums).abs().max() < 1e-12 and torch.equal(found["counts"][0].float(), counts)

    def test_centroids_move_between_steps_and_are_saved(self):
        network, batch = model(task(), "routing").train(), batch_for(task())
        before = {key: value.clone() for key, value in network.state_dict().items()}
        output = network(batch)
        assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
        assert set(output.statistics) == {"blocks.0.mixer.centroids", "blocks.1.mixer.centroids"}
        after_step(stepped_modules(network), 0, output.statistics)
        for mixer in network.mixers:
            assert (mixer.centroids.counts.sum(-1) > 0).all()
        other = model(task(), "routing", weights=1).eval()
        other.load_state_dict(network.state_dict())
        assert torch.equal(network.eval()(batch).logits, other(batch).logits)

    def test_statistics_have_no_gradient(self):
        mixer, x = make("routing").train(), rows(2, 40).requires_grad_()
        statistics = mixer(x, context(40))[1].statistics["centroids"]
        assert not any(value.requires_grad for value in statistics.values())
        assert not any(buffer.requires_grad for buffer in mixer.buffers())


@pytest.mark.parametrize(("most", "clusters"), [(1, 1), (1024, 32), (4096, 64), (16_384, 128)])
def test_default_clusters_are_the_root_of_the_maximum_length(most, clusters):
    assert make("routing", max_length=most).clusters == clusters


def test_causal_form_and_invalid_options_are_rejected():
    with pytest.raises(UserError, match="no exact causal form"):
        make("routing", causal=True)
    bad = (("clusters", 0), ("window", -1), ("local_heads", 2), ("local_heads", -1), ("decay", 1.0), ("kv_heads", 1))
    for name, value in bad:
        with pytest.raises(UserError, match=rf"model\.mixer\.{name}"):
            make("routing", **{name: value})
