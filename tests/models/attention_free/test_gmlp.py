"""gMLP and aMLP: initialisation, spatial weights and attention of the gate."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.attention_free.gmlp import GatedMLP
from tests.support.mixer_cases import WIDTH, dense_output, make, rows, run


@pytest.mark.parametrize("spatial", ["dense", "toeplitz"])
@pytest.mark.parametrize("n", [1, 40, 128])
def test_is_initialised_as_a_feed_forward_network(spatial, n):
    block, x = GatedMLP(WIDTH, 2, max_length=128, spatial=spatial).double().eval(), rows(2, n)
    z1 = torch.nn.functional.gelu(block.before(block.norm(x))).chunk(2, -1)[0]
    assert (run(block, x) - x - block.after(z1)).abs().max() < 1e-2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attention", [0, 8])
@pytest.mark.parametrize("n", [1, 2, 33])
def test_toeplitz_weights_equal_their_dense_matrix(causal, attention, n):
    block = make("gmlp", causal=causal, spatial="toeplitz", attention=attention)
    x, lengths = rows(2, n), [n, max(1, n // 2)]
    assert block.weights.shape == (1 if causal else 2, 128)
    assert (run(block, x) - dense_output(block, x)[0]).abs().max() < 1e-10
    y, expected = run(block, x, lengths), dense_output(block, x, lengths)[0]
    assert (y - expected)[1, : lengths[1]].abs().max() < 1e-10


def test_gate_without_spatial_weights_equals_attention():
    block, x = make("amlp"), rows(2, 30)
    with torch.no_grad():
        block.weights.zero_()
        block.bias.zero_()
    normed = block.norm(x)
    z1 = torch.nn.functional.gelu(block.before(normed)).chunk(2, -1)[0]
    q, k, v = block.compared(normed).chunk(3, -1)
    gate = block.read((q @ k.mT / 8).softmax(-1) @ v)
    assert (run(block, x) - x - block.after(z1 * gate)).abs().max() < 1e-12


def test_permuting_positions_and_weights_permutes_outputs():
    block, x, n = make("gmlp", max_length=40), rows(2, 40), 40
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    y = run(block, x)[:, order]
    with torch.no_grad():
        block.weights.copy_(block.weights[order][:, order])
        block.bias.copy_(block.bias[order])
    assert (run(block, x[:, order]) - y).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("option", "value"), [("hidden", 3), ("hidden", 0), ("attention", -1), ("spatial", "circulant")]
)
def test_invalid_options_are_rejected(option, value):
    with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
        make("gmlp", **{option: value})
