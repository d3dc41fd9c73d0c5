"""Scores, shared keys and the modern body of full attention, in addition to the test battery."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.feedforward import FeedForward
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.mixer import Context
from tests.support.mixer_cases import HEADS, WIDTH, make, rows, run
from tests.support.model_cases import batch_for, model, node_file, task


def same(a, b, tolerance=1e-10):
    return a.shape == b.shape and (a - b).abs().max().item() <= tolerance


def with_weights_of(mixer, other):
    """Return ``mixer`` with the weights of ``other`` that both have."""
    mixer.load_state_dict(other.state_dict(), strict=False)
    return mixer


class TestScores:
    def test_dot_equals_scaled_with_larger_queries(self):
        dot, x = make("score_dot"), rows(2, 20)
        scaled = with_weights_of(make("transformer"), dot)
        scaled.query.weight.data *= 8**0.5
        scaled.query.bias.data *= 8**0.5
        assert same(run(dot, x), run(scaled, x))

    def test_bilinear_is_initialised_as_scaled(self):
        torch.manual_seed(0)
        bilinear, x = SoftmaxAttention(WIDTH, HEADS, score="bilinear").double().eval(), rows(2, 20)
        assert same(run(bilinear, x), run(with_weights_of(make("transformer"), bilinear), x), 1e-6)

    def test_reduced_with_an_orthonormal_basis_equals_dot(self):
        reduced, x = make("score_reduced", rank=8), rows(2, 20)
        basis = torch.linalg.qr(reduced.reduce_query.data[0]).Q
        reduced.reduce_query.data[:] = basis
        reduced.reduce_key.data[:] = basis
        assert same(run(reduced, x), run(with_weights_of(make("score_dot"), reduced), x))

    def test_initial_reduced_scores_have_the_scale_of_scaled_ones(self):
        torch.manual_seed(0)
        mixer = SoftmaxAttention(256, 4, score="reduced", rank=8)
        q, k = torch.randn(2, 4, 300, 64), torch.randn(2, 4, 300, 64)
        a, b = mixer.compared(q, k, Context(None, torch.arange(300)))
        assert (a @ b.mT).std().item() == pytest.approx(1, rel=0.2)

    def test_additive_without_queries_gives_equal_outputs(self):
        mixer, x = make("score_additive"), rows(1, 70)
        mixer.for_query.data.zero_()
        y = run(mixer, x)
        assert same(y, y[:, :1].expand_as(y))

    def test_parameter_counts(self):
        count = lambda name, **own: sum(p.numel() for p in make(name, **own).parameters())  # noqa: E731
        plain = count("transformer")
        assert count("score_dot") == plain
        assert count("score_bilinear") - plain == HEADS * 8 * 8
        assert count("score_reduced", rank=3, kv_heads=2) - plain == 2 * HEADS * 8 * 3
        assert count("score_additive", score_width=5) - plain == HEADS * (2 * 8 * 5 + 5)

    @pytest.mark.parametrize(
        ("own", "message"),
        [
            ({"score": "additive"}, "score_additive"),
            ({"score": "cosine"}, r"model\.mixer\.score=cosine"),
            ({"rank": 3}, r"model\.mixer\.rank=3"),
            ({"score": "reduced", "rank": 0}, r"model\.mixer\.rank=0"),
        ],
    )
    def test_invalid_options_are_rejected(self, own, message):
        with pytest.raises(UserError, match=message):
            make("transformer", **own)
        with pytest.raises(UserError, match=r"model\.mixer\.score_width=0"):
            make("score_additive", score_width=0)


class TestSharedKeys:
    @pytest.mark.parametrize(("name", "kv_heads"), [("mqa", 1), ("gqa", 2)])
    @pytest.mark.parametrize("score", ["scaled", "reduced"])
    @pytest.mark.parametrize("causal", [False, True])
    def test_equals_heads_with_tied_keys_and_values(self, name, kv_heads, score, causal):
        torch.manual_seed(0)
        node = {key: value for key, value in node_file("model", name)["model"]["mixer"].items() if key != "_target_"}
        assert node == {"kv_heads": kv_heads}
        shared = SoftmaxAttention(WIDTH, 4, score=score, causal=causal, **node).double().eval()
        full = SoftmaxAttention(WIDTH, 4, score=score, causal=causal).double().eval()
        state = shared.state_dict()
        for key in ("key.weight", "key.bias", "value.weight", "value.bias"):
            state[key] = state[key].unflatten(0, (kv_heads, -1)).repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
        if score == "reduced":
            state["reduce_key"] = state["reduce_key"].repeat_interleave(4 // kv_heads, 0)
        full.load_state_dict(state)
        x = rows(2, 40)
        assert same(run(shared, x, [40, 9])[0], run(full, x, [40, 9])[0])
        assert len(state["key.bias"]) == 16 and len(shared.key.bias) == 4 * kv_heads


@pytest.mark.parametrize("name", ["transformer", "linear", "local", "nystrom", "sinkhorn", "luna"])
def test_projections_without_biases_equal_zero_biases(name):
    without, with_zeros, x = make(name, qkv_bias=False), make(name), rows(2, 32)
    own = dict(without.named_parameters())
    assert not {"query.bias", "key.bias", "value.bias"} & set(own) and "output.bias" in own
    for key, parameter in with_zeros.named_parameters():
        parameter.data = own[key].data if key in own else torch.zeros_like(parameter)
    assert same(run(without, x), run(with_zeros, x), 0)


class TestModern:
    def network(self, **options):
        file = node_file("model", "transformer_modern")
        body = {key: value for key, value in file["backbone"].items() if key != "position"}
        assert file["backbone"]["position"] == "rope"
        return model(task(), "transformer_modern", "rope", **body, **options)

    @pytest.mark.parametrize(("width", "hidden", "heads"), [(64, 128, 2), (256, 1024, 4), (512, 2048, 8), (16, 32, 2)])
    def test_has_about_as_many_parameters_as_a_transformer(self, width, hidden, heads):
        common = {"width": width, "ff_width": hidden, "heads": heads, "depth": 1}
        modern, plain = (each.parameter_parts()["body"] for each in (self.network(**common), model(task(), **common)))
        assert abs(modern / plain - 1) < 0.03

    def test_parts(self):
        network = self.network()
        assert network.position.name == "rope"
        assert all(isinstance(block.mixer_norm, torch.nn.RMSNorm) and block.pre for block in network.blocks)
        network(batch_for(task())).logits.square().sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in network.parameters())


@pytest.mark.parametrize(
    ("kind", "function"),
    [("swiglu", torch.nn.functional.silu), ("geglu", torch.nn.functional.gelu), ("reglu", torch.relu)],
)
def test_gated_feed_forward(kind, function):
    torch.manual_seed(0)
    network, x = FeedForward(8, 30, kind, 0.0, 5), torch.randn(3, 8)
    first, last = network[0], network[3]
    assert first.weight.shape == (40, 8) and last.weight.shape == (5, 20)
    gate, value = (x @ part.T + shift for part, shift in zip(first.weight.chunk(2), first.bias.chunk(2), strict=True))
    assert same(network(x), (function(gate) * value) @ last.weight.T + last.bias, 1e-6)
