"""Global tokens: learned rows before the tokens, or the first tokens."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.sparse.global_tokens import GlobalTokens
from tests.support.mixer_cases import HEADS, WIDTH, context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, randomise, task


@pytest.mark.parametrize("options", [{"global_tokens": 1}, {"global_tokens": 5, "kv_heads": 1}, {"global_tokens": 70}])
@pytest.mark.parametrize("n", [1, 5, 61])
def test_output_matches_the_definition(options, n):
    mixer, x, lengths = make("global_tokens", **options), rows(4, n), [n, (n + 1) // 2, 1, 0]
    o, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    for row, length in enumerate(lengths[:3]):
        assert (o - expected)[row, :length].abs().max() < 1e-12
    assert o.isfinite().all()


def test_two_layers_connect_all_tokens_and_one_does_not():
    mixer, n = make("global_tokens", learned=False), 20
    once, twice = (
        torch.autograd.functional.jacobian(lambda x, f=f: f(x).sum(-1)[0], rows(1, n))[:, 0].norm(dim=-1) > 0
        for f in (lambda x: run(mixer, x), lambda x: run(mixer, run(mixer, x)))
    )
    first = torch.arange(n) < 3
    assert torch.equal(once, first | first[:, None] | torch.eye(n, dtype=torch.bool)) and twice.all()


def test_learned_rows_are_added_before_the_tokens_once():
    network = randomise(model(task(), "global_tokens", "none", own={"global_tokens": 4}, depth=3))
    seen = []
    for block in network.blocks:
        block.register_forward_pre_hook(lambda module, args: seen.append((args[0].shape[1], args[1].prefix)))
    network(batch_for(task(), (24, 24)))
    assert seen == [(28, 4)] * 3
    assert [mixer.rows is None for mixer in network.mixers] == [False, True, True]


def test_learned_rows_make_the_mixer_permutation_equivariant():
    network = randomise(model(task(), "global_tokens", "none", own={"global_tokens": 4}))
    batch = batch_for(task(), (24,))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    before = network.hidden(batch)
    batch.tokens.copy_(batch.tokens[:, order])
    assert (network.hidden(batch) - before[:, order]).abs().max() < 1e-12


def test_cls_row_is_global_in_addition_to_learned_rows():
    mixer, place = make("global_tokens"), context(30).replace(prefix=5)
    x = rows(1, 30).requires_grad_()
    for at, reached in ((4, list(range(30))), (20, [0, 1, 2, 3, 4, 20])):
        (gradient,) = torch.autograd.grad(mixer(x, place)[0][0, at].square().sum(), x)
        assert (gradient[0].norm(dim=-1) > 0).nonzero().flatten().tolist() == reached


def test_invalid_options_are_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.global_tokens=0"):
        GlobalTokens(WIDTH, HEADS, global_tokens=0)
