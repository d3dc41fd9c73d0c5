"""Functions in place of softmax: definitions, gradients, masks, and keys of cells."""

import math

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.kernels.normalizers import NORMALIZERS, entmax15
from tests.oracles.full import compared
from tests.oracles.full import entmax15 as by_bisection
from tests.support.mixer_cases import HEADS, WIDTH, context, make, make_position, rows, run

OTHERS = [name for name in NORMALIZERS if name != "softmax"]
every_other = pytest.mark.parametrize("name", OTHERS)


def scores_of(*shape, scale=3.0, seed=0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("keys", [1, 2, 7, 60])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_entmax_weights_equal_those_of_a_bisection(keys, scale):
    scores = scores_of(200, keys, scale=scale)
    weights = entmax15(scores)
    assert (weights - by_bisection(scores, torch.ones(keys, dtype=torch.bool))).abs().max() < 1e-11
    assert (weights.sum(-1) - 1).abs().max() < 1e-12


def test_entmax_of_equal_scores_is_uniform_and_of_distant_ones_has_zeros():
    assert (entmax15(torch.full((1, 8), 5.0, dtype=torch.float64)) - 1 / 8).abs().max() < 1e-15
    weights = entmax15(torch.tensor([[0.0, 0.5, 4.0]], dtype=torch.float64))
    assert weights[0].tolist() == [0, 0, 1]


@pytest.mark.agrees("entmax15", compared="condition of optimality of the definition", within=1e-10)
def test_entmax_weights_are_optimal(within):
    scores = scores_of(300, 20)
    weights = entmax15(scores)
    # At a maximum of p·s + 4/3 Σ (p − p^1.5), s − 2 √p is the same number for all keys with weight, and larger than s
    # for the others.
    level = scores - 2 * weights.sqrt()
    used = weights > 0
    largest = level.masked_fill(~used, -torch.inf).amax(-1, keepdim=True)
    assert (level - largest)[used].abs().max() < within
    assert (scores <= largest + within)[~used].all()


@every_other
def test_gradients_equal_finite_differences(name):
    assert torch.autograd.gradcheck(NORMALIZERS[name], scores_of(4, 9).requires_grad_())


@every_other
def test_masked_keys_have_no_weight_and_change_no_other_weight(name):
    scores = scores_of(3, 9)
    hidden = torch.full((3, 5), torch.finfo(torch.float64).min, dtype=torch.float64)
    weights = NORMALIZERS[name](torch.cat((scores, hidden), -1))
    assert (weights[:, 9:] == 0).all()
    assert (weights[:, :9] - NORMALIZERS[name](scores)).abs().max() < 1e-14


@every_other
@pytest.mark.parametrize("encoding", [None, "rope", "alibi", "shaw", "da_transformer"])
def test_each_position_equals_the_definition(name, encoding):
    position = encoding and make_position(encoding, causal=True)
    mixer = SoftmaxAttention(WIDTH, HEADS, normalizer=name, causal=True, position=position).double().eval()
    x = rows(2, 40)
    weights = compared(mixer, x, torch.ones(40, 40, dtype=torch.bool).tril())
    expected = mixer.merge(weights @ mixer.project(x)[2])
    assert (run(mixer, x) - expected).abs().max() < 1e-10


@every_other
@pytest.mark.parametrize("encoding", [None, "rope", "alibi"])
def test_reading_in_parts_equals_reading_at_once(name, encoding):
    position = encoding and make_position(encoding, causal=True)
    mixer = SoftmaxAttention(WIDTH, HEADS, normalizer=name, causal=True, position=position).double().eval()
    x, memory, parts = rows(2, 90), None, []
    for start, stop in ((0, 1), (1, 30), (30, 90)):
        here = context(stop - start).replace(keeps_memory=True, memory=memory)
        y, here = mixer(x[:, start:stop], here.replace(positions=here.positions + start))
        memory = here.memory
        parts.append(y)
    assert (torch.cat(parts, 1) - run(mixer, x)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("name", "total"), [("relu", 1.7), ("sigmoid", 30 / (1 + 30 * math.exp(-1.7))), ("entmax15", 1.0)]
)
def test_equal_scores_have_equal_weights_of_a_known_sum(name, total):
    weights = NORMALIZERS[name](torch.full((1, 30), 1.7, dtype=torch.float64))
    assert (weights - total / 30).abs().max() < 1e-14


def test_unknown_normalizers_are_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.normalizer=l2: must be one of softmax, relu"):
        make("transformer", normalizer="l2")
    with pytest.raises(UserError, match=r"model\.mixer\.normalizer=relu: .* leave it out"):
        make("gaussian_transformer", normalizer="relu")


def test_softmax_changes_no_key_and_others_do(tmp_path):
    def key(model, *options):
        (planned,) = plan(["task=parity", f"model={model}", "protocol=quick", *options], tmp_path)
        return planned.cell.key.hash

    assert key("transformer") == key("transformer", "model.mixer.normalizer=softmax")
    assert key("transformer", "model.mixer.normalizer=relu") == key("relu_attention")
    assert len({key(name) for name in ("transformer", "relu_attention", "sigmoid_attention", "entmax15")}) == 4
