"""Clustered attention: k-means clusters, blocks of one cluster each, and the accuracy of attention."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.compressed.clustered import ClusteredAttention
from lra_bench.models.kernels.clusters import bit_clusters, cluster_means, cluster_sizes, in_blocks
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import HEADS, WIDTH, dense_output, make, rows, run

FORMS = ["clustered", "clustered_improved"]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestClusters:
    @pytest.mark.parametrize("iterations", [1, 10])
    def test_separated_clusters_are_found(self, iterations):
        truth = torch.arange(60) % 4  # k-means starts at tokens 0, 15, 30 and 45, one of each cluster
        x = (5 * draw(4, 8)[truth] + 0.01 * draw(60, 8, seed=1)).expand(2, 3, 60, 8)
        found = bit_clusters(x, draw(64, 9, seed=2), 4, iterations)
        for label in range(4):
            assert (found[..., truth == label] == found[..., truth == label][..., :1]).all()
        assert (found.sort(-1).values.diff() > 0).sum(-1).eq(3).all()

    def test_no_token_is_nearer_to_another_centre_after_convergence(self):
        x, planes = draw(1, 1, 200, 6), draw(16, 7, seed=1)
        found = bit_clusters(x, planes, 9, 40)
        assert torch.equal(found, bit_clusters(x, planes, 9, 41)), "k-means has not converged"
        bits = (x @ planes[:, :-1].T + planes[:, -1] >= 0)[0, 0].double()
        centres = torch.stack([bits[found[0, 0] == c].mean(0) >= 0.5 for c in found.unique()]).double()
        distance = (bits[:, None] != centres).sum(-1)
        own = distance.gather(1, torch.searchsorted(found.unique(), found[0, 0])[:, None])
        assert (own <= distance.min(1, keepdim=True).values).all()

    def test_equal_tokens_share_a_cluster(self):
        x = draw(2, 2, 20, 6).repeat(1, 1, 2, 1)
        found = bit_clusters(x, draw(24, 7, seed=1), 7, 5)
        assert torch.equal(found[..., :20], found[..., 20:])

    @pytest.mark.parametrize("length", [0, 1, 3, 20])
    def test_padding_has_no_effect(self, length):
        x, planes = draw(2, 2, 40, 6), draw(24, 7, seed=1)
        padding = Padding.from_lengths(torch.tensor([40, length]), 40)
        found = bit_clusters(x, planes, 5, 5, padding)
        assert torch.equal(found[:1], bit_clusters(x[:1], planes, 5, 5))
        if length:
            alone = bit_clusters(x[1:, :, :length], planes, 5, 5)
            assert torch.equal(found[1:, :, :length], alone)
            assert alone.max() < min(5, length)
        assert torch.equal(cluster_sizes(found, 5, padding).sum(-1), torch.tensor([[40] * 2, [length] * 2]))

    def test_means_and_gradients_equal_the_definition(self):
        x, clusters = draw(2, 2, 30, 4).requires_grad_(), torch.randint(5, (2, 2, 30)) % 4  # cluster 4 is empty
        padding = Padding.from_lengths(torch.tensor([30, 11]), 30)
        means = cluster_means(x, clusters, 5, padding)
        expected = torch.zeros_like(means)
        for b, h, c in torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(5)):
            members = (clusters[b, h] == c) & padding.valid[b]
            if members.any():
                expected = expected.index_put((b, h, c), x[b, h, members].mean(0))
        assert (means - expected).abs().max() < 1e-12 and means[:, :, 4].abs().max() == 0
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (means, expected)]
        assert (gradients[0] - gradients[1]).abs().max() < 1e-12


@pytest.mark.parametrize("block", [1, 4, 7, 64])
@pytest.mark.parametrize("kind", ["random", "one", "ascending", "few"])
def test_blocks_contain_every_token_once_and_a_single_cluster_each(block, kind):
    count, n = 9, 50
    clusters = {
        "random": torch.randint(count, (2, 3, n), generator=torch.Generator().manual_seed(0)),
        "one": torch.full((2, 3, n), 8),
        "ascending": (torch.arange(n) * count // n).expand(2, 3, n),
        "few": 3 * (torch.arange(n) % 2).expand(2, 3, n),
    }[kind]
    blocks = in_blocks(clusters, count, block)
    slots, tokens = blocks.slots, blocks.tokens.flatten(2)
    assert blocks.tokens.shape[-1] == block and tokens.shape[-1] <= n + count * (block - 1)
    assert torch.equal(tokens.gather(-1, slots), torch.arange(n).expand(2, 3, n))
    assert (slots.sort(-1).values.diff() > 0).all()
    assert torch.equal(blocks.cluster.gather(-1, slots // block), clusters)


@pytest.mark.parametrize("form", FORMS)
class TestAttention:
    @pytest.mark.parametrize("n", [1, 9, 40])
    def test_clusters_of_single_queries_equal_full_attention(self, form, n):
        mixer, full, x = make(form, clusters=1000, bits=200), make("transformer"), rows(2, n)
        full.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in full.state_dict()})
        assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12

    def test_equal_queries_have_equal_outputs(self, form):
        x = rows(2, 20).repeat(1, 2, 1)
        y = run(make(form), x)
        assert (y[:, :20] - y[:, 20:]).abs().max() < 1e-12

    @pytest.mark.parametrize("iterations", [0, 1, 10])
    def test_outputs_and_gradients_equal_the_definition(self, form, iterations):
        mixer, lengths, gradients = make(form, iterations=iterations), [40, 17, 2], []
        real = Padding.from_lengths(torch.tensor(lengths), 40)
        for compute in (run, lambda *case: dense_output(*case)[0]):
            x = rows(3, 40).requires_grad_()
            y = real.zero(compute(mixer, x, lengths))
            gradients.append((y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])))
        for actual, expected in zip(*gradients, strict=True):
            assert (actual - expected).abs().max() < 1e-9

    def test_error_decreases_with_the_number_of_clusters(self, form):
        full, x, errors = make("transformer"), rows(4, 200), []
        for clusters in (1, 20, 150):
            mixer = make(form, clusters=clusters, bits=64)
            mixer.load_state_dict({**mixer.state_dict(), **full.state_dict()})
            errors.append((run(mixer, x) - run(full, x)).norm().item())
        assert errors[0] > 1.1 * errors[1] > 1.2 * errors[2]

    def test_sequences_of_a_batch_are_independent(self, form):
        mixer, x, lengths = make(form), rows(3, 61), [61, 30, 4]
        together = run(mixer, x, lengths)
        for row, length in enumerate(lengths):
            assert (together[row, :length] - run(mixer, x[row : row + 1, :length])[0]).abs().max() < 1e-12

    def test_causal_form_is_rejected(self, form):
        with pytest.raises(UserError, match="no exact causal form"):
            make(form, causal=True)

    def test_invalid_options_are_rejected(self, form):
        bad = [{"clusters": 0}, {"bits": 0}, {"iterations": -1}, {"redraw_every": -1}]
        bad += [{"keys": 0}, {"kv_heads": 1}] if form == "clustered_improved" else []
        for own in bad:
            with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
                make(form, **own)


class TestImproved:
    def test_error_is_smaller_than_that_of_clustered_attention(self):
        full, x, errors = make("transformer"), rows(4, 200), []
        for form in FORMS:
            mixer = make(form, clusters=20)
            mixer.load_state_dict({**mixer.state_dict(), **full.state_dict()})
            errors.append((run(mixer, x) - run(full, x)).norm().item())
        assert errors[1] < 0.9 * errors[0]

    @pytest.mark.parametrize("lengths", [None, [61, 5]])
    def test_top_keys_do_not_include_padding(self, lengths):
        """With as many top keys as tokens, any clustering equals full attention."""
        mixer, full, x = make("clustered_improved", clusters=3, keys=61), make("transformer"), rows(2, 61)
        full.load_state_dict({k: v for k, v in mixer.state_dict().items() if k in full.state_dict()})
        actual, expected = run(mixer, x, lengths), run(full, x, lengths)
        assert (actual - expected)[0].abs().max() < 1e-12 and (actual - expected)[1, :5].abs().max() < 1e-12

    def test_dropout_keeps_the_mean_and_is_disabled_in_evaluation(self):
        mixer, x = make("clustered_improved", dropout=0.5), rows(1, 61).expand(300, -1, -1)
        dropped = run(mixer, x)
        evaluated = run(mixer.eval(), x)
        assert (evaluated - evaluated[0]).abs().max() < 1e-12 and (dropped - dropped[0]).abs().max() > 0.1
        assert ((dropped.mean(0) - evaluated[0]).norm() / evaluated[0].norm()).item() < 0.1


def test_planes_depend_on_seed_layer_and_step():
    def after(steps, **own):
        mixer = ClusteredAttention(WIDTH, HEADS, **own)
        with torch.no_grad():
            for step in steps:
                mixer.after_step(step, {})
        return mixer.directions.clone()

    assert torch.equal(after([]), after([])) and not torch.equal(after([]), after([], layer=1))
    assert not torch.equal(after([]), after([0]))
    assert torch.equal(after([0, 1, 2]), after([2])), "a resumed run would sample other planes"
    assert torch.equal(after([0, 1, 2], redraw_every=0), after([]))
