"""Luna's packed rows: what tokens read from them, and how they go from layer to layer."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import context, make, rows, run
from tests.support.model_cases import batch_for, model, task


def stack(causal, depth=3, **options):
    return model(
        task(direction="causal" if causal else "either"), "luna", "none", depth=depth, own={"packed": 4}, **options
    )


def carried(network, batch):
    """What each layer reads from the one below, and what it returns of it."""
    seen = []
    hooks = [
        mixer.register_forward_hook(
            lambda _, arguments, result: seen.append((arguments[1].carry.get("luna"), result[1].carry.get("luna")))
        )
        for mixer in network.mixers
    ]
    network(batch)
    for hook in hooks:
        hook.remove()
    return seen


def test_each_layer_adds_what_it_packed_and_the_next_normalises():
    network, x = stack(False), rows(2, 20)
    first, second, last = network.mixers
    assert first.norm is None and second.packed is None
    _, after = first(x, context(20))
    asks = first.split(first.packed_query(first.packed))
    keys = first.split(first.key(x))
    read = (asks @ keys.mT * first.head_dim**-0.5).softmax(-1) @ keys
    expected = first.packed + read.transpose(1, 2).flatten(2)
    assert (after.carry["luna"] - expected).abs().max() < 1e-12
    _, further = second(x, after)
    again, _ = second(x, context(20).hand_on("luna", 3 * expected + 5))
    assert (again - second(x, after)[0]).abs().max() < 1e-4, "the norm is not the reader's own"
    assert (further.carry["luna"] - second.norm(expected)).abs().max() > 1e-3
    _, end = last(x, further)
    assert end.carry["luna"] is further.carry["luna"], "nobody reads what the last layer would hand on"


@pytest.mark.parametrize("causal", [False, True])
def test_gradient_reaches_the_packed_rows_from_every_layer(causal):
    network, batch = stack(causal), batch_for(task())
    for depth in range(3):
        network.zero_grad()
        for other, mixer in enumerate(network.mixers):
            torch.nn.init.constant_(mixer.output.weight, 0.1 if other == depth else 0.0)
        torch.nn.init.normal_(network.mixers[depth].output.weight, std=0.2)
        network(batch).logits.square().sum().backward()
        assert network.mixers[0].packed.grad.abs().max() > 0
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name


def test_causal_layers_all_read_the_learned_rows():
    """Were they to carry what was packed, an output would know later tokens through the layer above."""
    network, batch = stack(True), batch_for(task(direction="causal"))
    learned = network.mixers[0].packed
    for before, after in carried(network, batch)[1:]:
        assert (before == learned).all() and (after == learned).all()


def test_one_packed_row_looks_alike_to_every_token():
    y = run(make("luna", packed=1), rows(2, 30))
    assert (y - y[:, :1]).abs().max() < 1e-12


def test_a_long_causal_row_equals_its_beginning():
    mixer, x = make("luna", causal=True, packed=20), rows(1, 300)
    assert (run(mixer, x)[:, :77] - run(mixer, x[:, :77])).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("own", "option"),
    [({"packed": 0}, "model.mixer.packed=0"), ({"kv_heads": 1}, "model.mixer.kv_heads"), ({"head_dim": 4}, "head_dim")],
)
def test_bad_options_are_named(own, option):
    with pytest.raises(UserError, match=option):
        make("luna", **own)
