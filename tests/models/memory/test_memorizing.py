"""The Memorizing Transformer: what its memory holds, and equality with attention to everything."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.memory import search
from lra_bench.models.memory.search import best_products
from tests.models.memory.test_memory import read_in_parts
from tests.oracles.memory import OUTPUTS
from tests.support.mixer_cases import HEADS, WIDTH, make, make_position, rows, run

EVERYTHING = {"segment": 8, "memory": 1000, "cache": 8, "neighbours": 1000}


def memorizing(**options):
    return make("memorizing", causal=True, **options)


def dense(mixer, x):
    return OUTPUTS[type(mixer)](mixer, x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril())


@pytest.mark.parametrize("combine", ["gate", "joint"])
@pytest.mark.parametrize("own", [EVERYTHING, {}, {"kv_heads": 1}, {"neighbours": 1, "cache": 0}, {"memory": 6}])
@pytest.mark.agrees("memorizing", compared="definition of the paper, also with one softmax", within=1e-10)
def test_equals_its_definition_for_every_combination(combine, own, within):
    x = rows(2, 61)
    mixer = memorizing(combine=combine, position=make_position("t5", causal=True), **own)
    assert (run(mixer, x) - dense(mixer, x)).abs().max() <= within


def test_with_one_softmax_over_everything_it_is_full_attention():
    x = rows(2, 61)
    mixer = memorizing(combine="joint", qk_norm=False, **EVERYTHING)
    full = make("transformer", causal=True)
    full.load_state_dict(mixer.state_dict())
    assert (run(mixer, x) - run(full, x)).abs().max() <= 1e-10


def test_all_keys_selected_one_by_one_equal_attention_to_the_memory():
    """As many neighbours as keys takes the path without a search; selecting all of them must give the same."""
    mixer = memorizing(**{**EVERYTHING, "neighbours": 24})
    q, k, v = (torch.randn(2, HEADS, size, 8, dtype=torch.float64) for size in (5, 24, 24))
    far_scores, values = mixer.selected(q, k, v)
    assert values.dim() == 4
    expected = far_scores.softmax(-1) @ values
    assert (torch.nn.functional.scaled_dot_product_attention(q, k, v) - expected).abs().max() <= 1e-12
    ids = best_products(q, k, 24)
    assert torch.equal(ids.sort().values, torch.arange(24).expand_as(ids))


@pytest.mark.parametrize("block", [7, 10_000])
def test_selection_is_that_of_the_largest_products(block, monkeypatch):
    monkeypatch.setattr(search, "KEYS_AT_ONCE", block)
    monkeypatch.setattr(search, "QUERIES_AT_ONCE", block)
    q, k = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 30, 8)
    expected = (q @ k.repeat_interleave(2, 1).mT).topk(5).indices
    assert torch.equal(best_products(q, k, 5), expected)


def test_with_a_closed_gate_it_attends_to_the_local_window_alone():
    x = rows(2, 61)
    mixer, local = memorizing(), memorizing(memory=2)
    with torch.no_grad():
        mixer.gate.fill_(-1000)
    assert mixer.local() == 2
    local.load_state_dict(mixer.state_dict())
    assert (run(mixer, x) - run(local, x)).abs().max() <= 1e-12
    with torch.no_grad():
        mixer.gate.fill_(0)
    assert (run(mixer, x) - run(local, x)).abs().max() > 1e-3


def test_only_one_layer_searches():
    for depth, chosen in ((1, 0), (2, 1), (4, 2), (12, 8)):
        assert [make("memorizing", layer=n, depth=depth).searches for n in range(depth)].index(True) == chosen
    layers = [memorizing(layer=n, depth=3, memory_layer=1) for n in range(3)]
    assert [layer.searches for layer in layers] == [True, False, False]
    assert layers[0].capacity() == {"keys": 37, "values": 37} and layers[1].capacity() == {"keys": 9, "values": 9}


def test_the_memory_holds_the_newest_keys_in_their_order():
    mixer, x = memorizing(), rows(2, 61)
    _, memory = read_in_parts(mixer, x, (8, 16, 40))
    _, k, v = mixer.compared(x)
    # 61 tokens: 30 before the segment that begins at 56, and 5 of the segment; two empty places in front.
    assert (memory["keys"][:, 2:] - k[:, :, 26:].transpose(1, 2)).abs().max() <= 1e-12
    assert (memory["values"][:, 2:] - v[:, :, 26:].transpose(1, 2)).abs().max() <= 1e-12
    assert not memory["keys"][:, :2].any() and memory["read"].tolist() == [61, 61]
    assert memory["keys"].shape == (2, 37, HEADS, WIDTH // HEADS)


@pytest.mark.parametrize("cuts", [(1, 2, 3, 30), (8, 40), (20, 21)])
@pytest.mark.parametrize("options", [{}, {"combine": "joint", "kv_heads": 1}, {"memory": 0}])
def test_the_parts_of_a_sequence_do_not_matter(cuts, options):
    mixer, x = memorizing(position=make_position("t5", causal=True), **options), rows(2, 61)
    whole, after = read_in_parts(mixer, x, ())
    parts, memory = read_in_parts(mixer, x, cuts)
    assert (parts - whole).abs().max() <= 1e-10
    for name, kept in memory.items():
        assert torch.allclose(kept, after[name], rtol=0, atol=1e-10)


def test_no_gradient_reaches_the_memory():
    mixer, x = memorizing(memory_layer=1), rows(1, 61).requires_grad_()
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, 60].sum(), x)
    assert gradient[0].abs().amax(-1).nonzero().flatten().tolist() == list(range(54, 61))
    mixer.detach = "segment"
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, 60].sum(), x)
    assert gradient[0].abs().amax(-1).nonzero().flatten().tolist() == list(range(56, 61))


@pytest.mark.parametrize(
    "options", [{"cache": -1}, {"neighbours": 0}, {"combine": "sum"}, {"memory_layer": 2}, {"memory_layer": 0}]
)
def test_invalid_options_raise_user_error(options):
    with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(options))}="):
        memorizing(**options)
