"""The decoder of all tokens from one state, compared with a loop over the positions in float64."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import Batch, TaskSpec, UserError
from lra_bench.models.backbone import SequenceModel
from lra_bench.models.memory.features import described
from lra_bench.models.readout import at_places
from lra_bench.options.backbone import BackboneOptions, OutputHead

SPEC = TaskSpec("toy", "1", "tagging", "either", 5, train_length=9, vocabulary_size=6, decodes_state=True)
MIXERS = {
    "attention": "lra_bench.models.full.softmax_attention.SoftmaxAttention",
    "recurrent": "lra_bench.models.state_space.mamba.Mamba",
}
NONE = {"_target_": "lra_bench.models.positions.none.NoPosition"}


def network(mixer="attention", spec=SPEC, **options):
    torch.manual_seed(0)
    chosen = BackboneOptions(width=12, heads=2, ff_width=16, dropout=0.0, **options)
    built = SequenceModel(spec=spec, mixer={"_target_": MIXERS[mixer]}, position=NONE, options=chosen)
    return built.double().eval()


def batch(lengths, seed=0):
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 6, (len(lengths), max(lengths)), generator=random)
    return Batch(torch.tensor(lengths), tokens - 1, tokens)


def rms(x, weight):
    return x / (x.square().mean() + torch.finfo(x.dtype).eps).sqrt() * weight


def decoded(parameters, state, place):
    """Return the logits of one position: a network of two layers of the state plus the waves of the position."""
    angles = [place / 10_000 ** (channel // 2 * 2 / len(state)) for channel in range(len(state))]
    waves = [math.cos(angle) if channel % 2 else math.sin(angle) for channel, angle in enumerate(angles)]
    x = state + torch.tensor(waves, dtype=torch.float64)
    scales, weights, biases = parameters
    for layer in range(2):
        x = F.gelu(weights[layer] @ rms(x, scales[layer]) + biases[layer])
    return weights[2] @ rms(x, scales[2]) + biases[2]


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[9, 9], [9, 4, 1]])
def test_logits_equal_those_of_a_loop_over_positions(mixer, causal, lengths):
    model, inputs = network(mixer, causal=causal), batch(lengths)
    for layer in model.head.layers:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
    layers = model.head.layers
    parameters = (
        [layers[index].weight for index in (0, 3, 6)],
        [layers[index].weight for index in (1, 4, 7)],
        [layers[index].bias for index in (1, 4, 7)],
    )
    logits, states = model(inputs).logits, model.hidden(inputs)
    assert logits.shape == (len(lengths), 9, 5)
    for row, length in enumerate(lengths):
        for place in range(9):
            expected = decoded(parameters, states[row, length - 1], place)
            torch.testing.assert_close(logits[row, place], expected, rtol=0, atol=1e-10)


def test_only_the_state_of_the_last_token_reaches_the_head():
    model, inputs = network(causal=True), batch([9, 9])
    received = []
    model.norm.register_forward_hook(lambda module, arguments, output: received.append(output))
    logits = model(inputs).logits
    received[0].retain_grad()
    logits.square().sum().backward()
    gradient = received[0].grad.abs().sum(dim=-1)
    assert (gradient[:, :-1] == 0).all() and (gradient[:, -1] > 0).all()


def test_features_for_retrieval_are_the_inputs_of_the_decoder():
    model, inputs = network(causal=True), batch([9, 5])
    output, features = described(model, inputs)
    states = model.hidden(inputs)[torch.arange(2), inputs.lengths - 1]
    torch.testing.assert_close(features, at_places(states, 9), rtol=0, atol=1e-12)
    assert output.logits.shape == (2, 9, 5)


def test_other_tasks_have_no_decoder():
    plain = network(spec=replace(SPEC, decodes_state=False))
    assert type(plain.head.layers) is torch.nn.Linear
    assert [name for name, _ in plain.named_parameters() if "head" in name] == [
        "head.layers.weight",
        "head.layers.bias",
    ]


def test_another_output_head_and_depth_controllers_are_refused():
    with pytest.raises(UserError, match=r"backbone\.output.kind=mixture: toy has a decoder of its own; leave it out"):
        network(output=OutputHead(kind="mixture"))
    controller = {"_target_": "lra_bench.models.depth.universal.Universal"}
    with pytest.raises(UserError, match=r"model\.controller: toy decodes one state, not tokens; choose another task"):
        SequenceModel(
            spec=SPEC,
            mixer={"_target_": MIXERS["attention"]},
            position=NONE,
            options=BackboneOptions(width=12, heads=2),
            controller=controller,
        )
