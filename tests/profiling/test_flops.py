"""FLOPs compared with exact formulas, counting routes, ``extra_flops`` of mixers, and names of uncounted operators."""

import copy

import pytest
import torch
from torch import nn

from lra_bench.contracts import Batch, Output, TaskSpec
from lra_bench.profiling import flops
from lra_bench.profiling.flops import count_flops
from lra_bench.profiling.synthetic import synthetic_batch
from tests.support import toy_networks as toy

N, E, FF, CLASSES = 64, 8, 16, 5


def count(
    network: type[toy.Network], batch_size: int = 3, spec: TaskSpec | None = None, **options: object
) -> flops.FlopCount:
    spec = spec or toy.spec(length=N)
    return count_flops(network(spec=spec, **options), synthetic_batch(spec, batch_size, spec.train_length, "cpu"))


def layer(rows: int, length: int = N) -> int:
    """Return the FLOPs of projections and feed-forward layer: four products with E x E, two with E x FF matrices."""
    return rows * length * 2 * (4 * E * E + 2 * E * FF)


def head(rows: int) -> int:
    return rows * 2 * E * CLASSES


def attention(rows: int, length: int = N) -> int:
    """Return the FLOPs of the scores and their product with the values; all heads together have width E."""
    return rows * 2 * 2 * length * length * E


def linear_attention(rows: int, heads: int = 2) -> int:
    """Return the FLOPs of a D x D state from keys and values, and of queries times the state, for all heads."""
    return rows * 2 * 2 * N * (E // heads) * E


@pytest.mark.parametrize("rows", [1, 3])
def test_flops_of_a_transformer_layer_are_exact(rows: int) -> None:
    found = count(toy.Attention, rows)
    forward = layer(rows) + attention(rows) + head(rows)
    assert (found.forward, found.training, found.route) == (forward, 3 * forward, "meta")
    assert (found.tokens, found.uncounted) == (rows * N, ())


def test_flops_of_linear_attention_are_exact() -> None:
    found = count(toy.LinearAttention)
    forward = layer(3) + linear_attention(3) + head(3)
    assert (found.forward, found.training, found.route) == (forward, 3 * forward, "meta")


def test_input_values_need_no_gradient_product() -> None:
    spec = toy.spec(channels=4, length=N)
    found = count(toy.LinearAttention, 1, spec)
    others, first = layer(1) + linear_attention(1) + head(1), N * 2 * 4 * E
    assert (found.forward, found.training) == (others + first, 3 * others + 2 * first)


@pytest.mark.parametrize("network", [toy.Attention, toy.LinearAttention, toy.LooksAtNumbers, toy.TwiceByHand])
def test_flops_are_proportional_to_the_batch_size(network: type[toy.Network]) -> None:
    one, two = count(network, 2), count(network, 4)
    assert one.forward and one.training
    assert (two.forward, two.training) == (2 * one.forward, 2 * one.training)
    assert one.as_record()["per_token_forward"] == two.as_record()["per_token_forward"]


def test_model_with_control_flow_on_values_is_counted_on_the_cpu() -> None:
    found, oracle = count(toy.LooksAtNumbers), count(toy.Attention)
    assert (found.forward, found.training) == (oracle.forward, oracle.training)
    assert (found.route, oracle.route) == ("CPU math path", "meta")


def test_tokens_of_both_documents_of_a_pair_count() -> None:
    found = count(toy.Attention, 3, toy.spec("matching", N))
    assert found.tokens == 6 * N
    assert found.forward == layer(6) + attention(6) + head(3)
    assert found.length == N


def test_operators_without_a_formula_are_named_and_the_others_counted() -> None:
    found = count(toy.Cumulative)
    assert found.uncounted == ("_fft_c2c", "_fft_r2c", "cumsum")
    assert found.forward == 3 * N * 2 * (E * E + 2 * E * FF) + head(3)


def test_extra_flops_are_summed_over_calls_and_stated_in_the_route() -> None:
    found = count(toy.TwiceByHand)
    counted, extra = 3 * N * 2 * 2 * E * FF + head(3), 2 * 3 * 7 * N * E
    assert (found.forward, found.training) == (counted + extra, 3 * (counted + extra))
    assert found.route == "meta plus hand counts"
    assert found.uncounted == ("cumsum",)


def test_flops_are_none_with_reasons_if_no_route_succeeds() -> None:
    found = count(toy.Failing, how="error", limit=8)
    assert (found.forward, found.training) == (None, None)
    assert found.as_record() == {
        "per_token_forward": None,
        "per_token_training": None,
        "length": N,
        "route": "none (meta: shapes do not match; CPU math path: shapes do not match)",
        "uncounted": [],
    }


def test_counting_does_not_change_the_model() -> None:
    spec = toy.spec(length=N)
    model = toy.Attention(spec=spec).eval()
    before = copy.deepcopy(model.state_dict())
    count_flops(model, synthetic_batch(spec, 2, N, "cpu"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training and not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: torch.sort(x), "sort"),
        (lambda x: torch.topk(x, 2), "topk"),
        (lambda x: torch.linalg.solve(x, x), "_linalg_solve_ex"),
        (lambda x: torch.fft.rfft(x), "_fft_r2c"),
        (lambda x: torch.mv(x, x[0]), "mv"),
        (lambda x: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"), "_cdist_forward"),
    ],
)
def test_costly_operators_are_named(work, name: str) -> None:
    with flops.Uncounted() as uncounted:
        work(torch.eye(4))
    assert name in uncounted.names


def test_cheap_and_counted_operators_are_not_named() -> None:
    with flops.Uncounted() as uncounted:
        x = torch.nn.functional.normalize(torch.randn(4, 4, requires_grad=True), dim=-1)
        y = torch.nn.functional.layer_norm(x.softmax(-1) @ x, (4,)).exp().mean(0)[None, :].expand(4, 4).clone()
        torch.cat([y, x.roll(1)]).sum().backward()
    assert uncounted.names == set()


def test_custom_operator_is_named() -> None:
    @torch.library.custom_op("lra_bench_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with flops.Uncounted() as uncounted:
        double(torch.ones(2))
    assert uncounted.names == {"lra_bench_test.double"}


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.LSTM | nn.GRU], layers: int, bidirectional: bool, state: bool) -> None:
        super().__init__()
        self.network = cell(8, 6, layers, batch_first=True, bidirectional=bidirectional)
        self.state = nn.Parameter(torch.zeros(layers * (1 + bidirectional), 1, 6)) if state else None

    def forward(self, batch: Batch) -> Output:
        state = None if self.state is None else self.state.expand(-1, len(batch.lengths), -1).contiguous()
        both = state if state is None or isinstance(self.network, nn.GRU) else (state, state)
        y, final = self.network(batch.values, both)
        return Output(y.sum(dim=1) + (final if isinstance(self.network, nn.GRU) else final[0]).sum())


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_products_of_a_recurrent_network_are_those_that_torch_computes(
    cell: type[nn.LSTM | nn.GRU], layers: int, bidirectional: bool, state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Recurrent(cell, layers, bidirectional, state)
    batch = Batch(torch.tensor([5, 5, 5]), torch.zeros(3).long(), values=torch.randn(3, 5, 8))
    fast = count_flops(model, batch)
    monkeypatch.setattr(flops, "_products", lambda network, forward, *inputs: forward(*inputs))
    assert count_flops(model, batch) == fast
    assert fast.route == "meta"
