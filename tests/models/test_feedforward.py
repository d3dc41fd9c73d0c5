"""Feed-forward networks: activations, gated forms, experts and product-key memories."""

import math
from dataclasses import asdict

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.experts import Experts
from lra_bench.models.feedforward import GATED, FeedForward, activation
from lra_bench.models.mixer import Context, Padding
from lra_bench.models.product_keys import ProductKeyMemory
from lra_bench.options.backbone import Experts as ExpertOptions
from lra_bench.options.backbone import ProductKeys
from tests.support.mixer_cases import context, rows
from tests.support.model_cases import batch_for, model, task

WIDTH = 16
EXPERTS = {**asdict(ExpertOptions()), "count": 4}
MEMORY = {**asdict(ProductKeys()), "layer": 2, "keys": 5, "heads": 2, "top_k": 3}
DEFINITIONS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (math.exp(x) - 1)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "softplus": lambda x: math.log(1 + math.exp(x)),
}
GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "glu": "sigmoid"}


def close(a, b, tolerance=1e-12):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tolerance


@pytest.mark.parametrize("name", DEFINITIONS)
def test_activations_equal_their_definitions(name):
    x = torch.linspace(-3, 3, 25, dtype=torch.float64)
    expected = torch.tensor([DEFINITIONS[name](value) for value in x.tolist()], dtype=torch.float64)
    close(activation(name)(x), expected, 1e-14)


@pytest.mark.parametrize("name", GATED)
def test_gated_networks_equal_their_definition_and_have_as_many_parameters(name):
    for width, hidden in ((64, 128), (128, 512), (64, 100)):
        sizes = [sum(p.numel() for p in FeedForward(width, hidden, kind, 0.0).parameters()) for kind in (name, "relu")]
        assert abs(sizes[0] / sizes[1] - 1) < 0.01
    network, x = FeedForward(WIDTH, 24, name, 0.0).double(), rows(2, 3)
    before, after = network[0], network[-1]
    gate, value = (x @ before.weight.mT + before.bias).chunk(2, -1)
    gate = activation(GATES[name])(gate) if name in GATES else gate
    close(network(x), (gate * value) @ after.weight.mT + after.bias)


def test_the_bilinear_form_is_homogeneous_of_degree_two():
    network, x = FeedForward(WIDTH, 24, "liglu", 0.0).double(), rows(2, 3)  # biases are zero
    close(network(3 * x), 9 * network(x))


def experts(count=4, top_k=2, kind="relu", **own):
    torch.manual_seed(0)
    options = {"balance": 0.01, "z_loss": 0.001, "jitter": 0.0, **own}
    network = Experts(WIDTH, 24, kind, 0.0, count=count, top_k=top_k, **options).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return network


@pytest.mark.agrees("backbone.experts", compared="a loop over tokens", within=1e-12)
@pytest.mark.parametrize("kind", ["relu", "swiglu"])
@pytest.mark.parametrize(("count", "top_k"), [(4, 2), (5, 1), (3, 3), (1, 1)])
def test_experts_equal_a_loop_over_tokens(kind, count, top_k, within):
    network, x = experts(count, top_k, kind), rows(2, 7)
    y, _ = network(x, context(7))
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(7)).tolist():
        weights = (network.router.weight @ x[b, t]).softmax(0)
        chosen = weights.argsort(descending=True)[:top_k].tolist()
        total = 1.0 if top_k == 1 else sum(weights[e] for e in chosen)
        expected = torch.zeros(WIDTH, dtype=torch.float64)
        for e in chosen:
            hidden = network.activation(x[b, t] @ network.before[e] + network.before_bias[e])
            expected += weights[e] / total * (hidden @ network.after[e] + network.after_bias[e])
        close(y[b, t], expected, within)


@pytest.mark.parametrize("kind", ["gelu", "geglu"])
def test_one_expert_equals_the_feed_forward_network(kind):
    network, x = experts(1, 1, kind), rows(2, 7)
    dense = FeedForward(WIDTH, 24, kind, 0.0).double()
    with torch.no_grad():
        dense[0].weight.copy_(network.before[0].mT), dense[0].bias.copy_(network.before_bias[0])
        dense[-1].weight.copy_(network.after[0].mT), dense[-1].bias.copy_(network.after_bias[0])
    close(network(x, context(7))[0], dense(x))
    assert network.inactive_parameters == 0


def test_the_balance_loss_is_smallest_for_equal_shares_and_padding_does_not_count():
    network = experts(balance=1.0, z_loss=0.0).train()
    with torch.no_grad():
        network.router.weight.copy_(20 * torch.eye(4, WIDTH, dtype=torch.float64))
    one_hot = torch.eye(WIDTH, dtype=torch.float64)
    equal, unequal = one_hot[[0, 1, 2, 3] * 2][None], one_hot[[0] * 8][None]
    losses = [network(x, context(8))[1].losses["experts"] for x in (equal, unequal)]
    close(losses[0], torch.tensor(1.0, dtype=torch.float64), 1e-6)
    close(losses[1], torch.tensor(4.0, dtype=torch.float64), 1e-6)
    padded = Context(Padding.from_lengths(torch.tensor([8]), 12), torch.arange(12))
    close(network(torch.cat((equal, unequal[:, :4]), 1), padded)[1].losses["experts"], losses[0])
    assert network.eval()(equal, context(8))[1].losses == {}


def test_the_z_loss_is_the_mean_square_of_the_log_of_the_sum():
    network, x = experts(balance=0.0, z_loss=0.5).train(), rows(2, 7)
    expected = 0.5 * (x @ network.router.weight.mT).exp().sum(-1).log().square().mean()
    close(network(x, context(7))[1].losses["experts"], expected)


def test_losses_of_parts_of_a_batch_add_up():
    network, x = experts().train(), rows(3, 7)
    whole, parts = network(x, context(7))[1].losses, [network(part, context(7))[1].losses for part in x.split([1, 2])]
    close(whole["experts"], (parts[0]["experts"] + 2 * parts[1]["experts"]) / 3)


def test_tokens_do_not_affect_each_other_and_gradients_reach_the_router():
    network, x = experts(), rows(2, 7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    y = network(x, context(7))[0]
    close(network(x[:, order], context(7))[0], y[:, order])
    switch = experts(top_k=1)
    switch(x, context(7))[0].square().sum().backward()
    assert switch.router.weight.grad.abs().max() > 0


def test_active_parameters_are_those_that_one_token_uses():
    spec = task()
    plain = model(spec, ff_width=24).parameter_parts()
    # Two of four experts with half of the hidden width have the parameters of one network, except for one bias each.
    parts = model(spec, ff_width=24, experts=EXPERTS).parameter_parts()
    assert parts["body_active"] - plain["body_active"] == 2 * (4 * WIDTH + WIDTH)
    assert parts["body"] - parts["body_active"] == 2 * 2 * (2 * WIDTH * 12 + 12 + WIDTH)
    memory = model(spec, product_keys=MEMORY).parameter_parts()
    assert memory["body"] - memory["body_active"] == (25 - 2 * 3) * WIDTH


def memory_layer():
    torch.manual_seed(0)
    return ProductKeyMemory(WIDTH, keys=6, heads=2, top_k=4, lr_factor=3.0).double()


@pytest.mark.agrees("backbone.product_keys", compared="a search of all pairs of half-keys", within=1e-12)
def test_product_keys_equal_a_search_of_all_pairs(within):
    memory, x = memory_layer(), rows(2, 5)
    y = memory(x)
    queries = memory.norm(memory.query(x).unflatten(-1, (2, WIDTH)))
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        expected = torch.zeros(WIDTH, dtype=torch.float64)
        for head in range(2):
            pairs = [(i, j) for i in range(6) for j in range(6)]
            keys = torch.stack([torch.cat((memory.keys[head, 0, i], memory.keys[head, 1, j])) for i, j in pairs])
            scores, best = (keys @ queries[b, t, head]).topk(4)
            expected += scores.softmax(0) @ memory.values[best]
        close(y[b, t], expected, within)


def test_the_values_of_a_memory_have_their_own_learning_rate():
    assert memory_layer().optimizer_hints["values"] == {"lr_factor": 3.0, "weight_decay": 0.0}


def test_layers_with_experts_and_a_memory_are_counted_from_one():
    network = model(task(), depth=4, experts={**EXPERTS, "every": 2}, product_keys={**MEMORY, "layer": 3})
    kinds = [type(block.feed_forward).__name__ for block in network.blocks]
    assert kinds == ["FeedForward", "Experts", "ProductKeyMemory", "Experts"]
    assert network(batch_for(task())).logits.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": {**EXPERTS, "top_k": 5}}, r"backbone\.experts\.top_k=5: must be .* at most count=4"),
        ({"experts": {**EXPERTS, "every": 3}}, r"backbone\.experts\.every=3: .*backbone\.depth=2"),
        ({"experts": EXPERTS, "feed_forward": False}, r"backbone\.experts: blocks have no feed-forward networks"),
        ({"experts": EXPERTS, "feed_forward_chunks": 2}, r"backbone\.experts: .*set backbone\.feed_forward_chunks=1"),
        ({"experts": EXPERTS, "reversible": True}, r"backbone\.reversible=true: .*experts"),
        ({"product_keys": {**MEMORY, "layer": 3}}, r"backbone\.product_keys\.layer=3: .*backbone\.depth=2"),
        ({"product_keys": {**MEMORY, "top_k": 6}}, r"backbone\.product_keys\.top_k=6: .*at most keys=5"),
        ({"product_keys": MEMORY, "feed_forward": False}, r"backbone\.product_keys: blocks have no feed-forward"),
        ({"product_keys": MEMORY, "width": 17, "heads": 1, "position": "none"}, r"backbone\.width=17: must be even"),
    ],
)
def test_wrong_options_raise_user_error(options, message):
    position = options.pop("position", "sinusoidal")
    with pytest.raises(UserError, match=message):
        model(task(), "transformer", position, **options)


def test_jitter_changes_the_choice_in_training_only():
    network, x = experts(jitter=0.5).train(), rows(2, 7)
    assert not torch.equal(network(x, context(7))[0], network(x, context(7))[0])
    network.eval()
    assert torch.equal(network(x, context(7))[0], network(x, context(7))[0])
