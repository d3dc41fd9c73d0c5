"""RealFormer, LazyFormer and Evolving Attention, compared with explicit computations of all layers."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import context, make, rows, run, run_stack, stack
from tests.support.storage import largest_storage

directions = pytest.mark.parametrize("causal", [False, True])


def visible(n, causal):
    seen = torch.ones(n, n, dtype=torch.bool)
    return seen.tril() if causal else seen


def scores_of(mixer, x):
    q, k = mixer.split(mixer.query(x)), mixer.split(mixer.key(x))
    return q @ k.mT * mixer.head_dim**-0.5


def read(mixer, x, scores, causal):
    weights = scores.masked_fill(~visible(x.shape[1], causal), -torch.inf).softmax(-1)
    return x + mixer.merge(weights @ mixer.split(mixer.value(x)))


class TestRealFormer:
    @pytest.mark.agrees("realformer", compared="sum of the scores of the layers in the authors' code", within=1e-12)
    @directions
    def test_layers_add_their_scores(self, causal, within):
        mixers, x = stack("realformer", 4, causal=causal), rows(2, 30)
        expected, total = x, 0
        for mixer in mixers:
            total = total + scores_of(mixer, expected)
            expected = read(mixer, expected, total, causal)
        found = run_stack(mixers, x)
        assert (found - expected).abs().max() <= within
        weights = list(mixers.parameters())
        actual, reference = (torch.autograd.grad(y.square().sum(), weights) for y in (found, expected))
        assert all((one - other).abs().max() < 1e-8 for one, other in zip(actual, reference, strict=True))

    def test_zero_queries_repeat_the_weights_of_the_layer_below(self):
        first, second = stack("realformer", 2)
        x = rows(1, 30)
        _, after = first(x, context(30))
        torch.nn.init.zeros_(second.query.weight)
        torch.nn.init.zeros_(second.query.bias)
        expected = second.merge(scores_of(first, x).softmax(-1) @ second.split(second.value(x)))
        assert (second(x, after)[0] - expected).abs().max() < 1e-12

    def test_a_single_layer_is_full_attention(self):
        mixer, full = make("realformer"), make("transformer")
        full.load_state_dict(mixer.state_dict())
        assert (run(mixer, rows(2, 30)) - run(full, rows(2, 30))).abs().max() < 1e-12

    def test_the_last_layer_leaves_the_carry_unchanged(self):
        first, second = stack("realformer", 2)
        _, after = first(rows(1, 9), context(9))
        assert second(rows(1, 9), after)[1].carry is after.carry
        assert after.carry["realformer"][0].shape == (1, 2, 9, 8)


class TestLazyFormer:
    @pytest.mark.agrees("lazyformer", "lazyformer_maps", compared="groups of layers of the paper", within=1e-12)
    @directions
    @pytest.mark.parametrize("name", ["lazyformer", "lazyformer_maps"])
    @pytest.mark.parametrize("share", [1, 2, 3])
    def test_groups_share_the_weights_of_their_first_layer(self, name, share, causal, within):
        mixers, x = stack(name, 5, share=share, causal=causal), rows(2, 30)
        expected = x
        for layer, mixer in enumerate(mixers):
            if layer % share == 0:
                scores = scores_of(mixer, expected)
            expected = read(mixer, expected, scores, causal)
        assert (run_stack(mixers, x) - expected).abs().max() <= within

    @directions
    @pytest.mark.parametrize("lengths", [None, [40, 23, 0]])
    def test_both_forms_have_equal_outputs_and_gradients(self, causal, lengths):
        found = []
        for name in ("lazyformer", "lazyformer_maps"):
            mixers, x = stack(name, 4, share=3, causal=causal), rows(3, 40)
            y = run_stack(mixers, x, lengths)
            y = y if lengths is None else context(40, lengths).padding.zero(y)
            found.append((y, *torch.autograd.grad(y.square().sum(), list(mixers.parameters()))))
        for one, other in zip(*found, strict=True):
            assert (one - other).abs().max() <= 1e-10 * (1 + one.abs().max())

    def test_later_layers_of_a_group_have_no_queries_and_keys(self):
        mixers = stack("lazyformer", 5, share=2)
        assert ["query.weight" in mixer.state_dict() for mixer in mixers] == [True, False, True, False, True]
        sizes = [sum(p.numel() for p in mixer.parameters()) for mixer in mixers]
        assert sizes[0] == 2 * sizes[1]

    def test_unused_weights_are_not_passed_on(self):
        for share, depth, expected in ((1, 3, [0, 0, 0]), (2, 3, [1, 0, 0]), (3, 5, [1, 1, 0, 1, 0])):
            assert [mixer.is_followed for mixer in stack("lazyformer", depth, share=share)] == expected

    def test_only_the_map_form_stores_weights(self):
        x = rows(1, 128, dtype=torch.float32).requires_grad_()
        by_maps, by_keys = (
            largest_storage(lambda name=name: run_stack(stack(name, 2, dtype=torch.float32), x))
            for name in ("lazyformer_maps", "lazyformer")
        )
        assert by_maps == 2 * 128 * 128 > 4 * by_keys

    def test_dropout_is_applied_to_outputs(self):
        mixer, x = make("lazyformer", dropout=0.5), rows(2, 30)
        torch.nn.init.eye_(mixer.output.weight)
        torch.nn.init.zeros_(mixer.output.bias)
        assert 0.4 < (run(mixer, x) == 0).double().mean() < 0.6
        assert (run(mixer.eval(), x) != 0).all()

    def test_invalid_options_are_rejected(self):
        with pytest.raises(UserError, match=r"model\.mixer\.share=0"):
            make("lazyformer", share=0)


def convolved(masked, weight, bias):
    """Return a zero-padded convolution over maps, with heads as channels, computed entry by entry."""
    batch, heads, n, _ = masked.shape
    height = weight.shape[2]
    out = bias[None, :, None, None].expand(batch, heads, n, n).clone()
    for i in range(n):
        for j in range(n):
            for a in range(height):
                for b in range(3):
                    row, column = i + a - 1, j + b - 1
                    if 0 <= row < n and 0 <= column < n:
                        out[:, :, i, j] += masked[:, :, row, column] @ weight[:, :, a, b].T
    return out


class TestEvolvingAttention:
    @pytest.mark.agrees("predictive", compared="scores of the authors' code for images", within=1e-12)
    @directions
    @pytest.mark.parametrize("shares", [(0.3, 0.5), (1.0, 1.0), (0.0, 0.2), (0.6, 0.0)])
    def test_scores_match_the_definition(self, causal, shares, within):
        alpha, beta = shares
        mixers, x = stack("predictive", alpha=alpha, beta=beta, causal=causal), rows(2, 9)
        expected, below = x, None
        for mixer in mixers:
            scores = scores_of(mixer, expected)
            if below is not None:
                mixed = alpha * below + (1 - alpha) * scores
                masked = mixed * visible(9, causal)
                convolution = mixer.convolution
                seen = convolved(masked, convolution.weight, convolution.bias).relu() if beta else 0
                scores = beta * seen + (1 - beta) * mixed
            below = scores
            expected = read(mixer, expected, scores, causal)
        assert (run_stack(mixers, x) - expected).abs().max() <= within

    def test_zero_alpha_and_beta_are_full_attention_in_every_layer(self):
        mixers, full = stack("predictive", alpha=0.0, beta=0.0), stack("transformer")
        full.load_state_dict(mixers.state_dict())
        x, lengths = rows(2, 30), [30, 11]
        difference = run_stack(mixers, x, lengths) - run_stack(full, x, lengths)
        assert context(30, lengths).padding.zero(difference).abs().max() < 1e-12

    def test_identity_kernel_keeps_positive_scores(self):
        first, second = stack("predictive", 2, alpha=1.0, beta=1.0)
        with torch.no_grad():
            second.convolution.weight.zero_()
            second.convolution.weight[:, :, 1, 1] = torch.eye(2)
            second.convolution.bias.zero_()
        x = rows(1, 20)
        below = scores_of(first, x)
        _, after = first(x, context(20))
        found = second.evolve(*second.project(x)[:2], after)
        assert (found - below.relu()).abs().max() < 1e-12

    def test_the_first_layer_has_no_convolution(self):
        assert [mixer.convolution is None for mixer in stack("predictive")] == [True, False, False]
        assert stack("predictive", causal=True)[1].convolution.weight.shape == (2, 2, 2, 3)

    @pytest.mark.parametrize("own", [{"alpha": -0.1}, {"beta": 1.5}])
    def test_invalid_options_are_rejected(self, own):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("predictive", **own)
