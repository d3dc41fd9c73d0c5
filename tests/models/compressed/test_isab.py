"""ISAB: a self-contained block with a few learned inducing points."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import WIDTH, make, rows, run
from tests.support.model_cases import batch_for, model, task


def test_single_point_adds_the_same_to_every_token():
    mixer, x = make("isab", points=1), rows(2, 30)
    inputs = []
    mixer.spread.read_norm.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    run(mixer, x)
    added = inputs[0] - mixer.spread.query(x)
    assert (added - added[:, :1]).abs().max() < 1e-12 and added.abs().max() > 1e-3


def test_repeating_the_set_does_not_change_outputs():
    mixer, x = make("isab"), rows(2, 20)
    assert (run(mixer, torch.cat((x, x), 1))[:, :20] - run(mixer, x)).abs().max() < 1e-12


def test_backbone_adds_nothing_to_the_block():
    network, batch = model(task(), "isab", "none", own={"points": 4}), batch_for(task(), (24, 24))
    assert len(network.blocks) == 2 and network.blocks[0] is network.mixers[0]
    x = network.embedding(batch.tokens)
    for block in network.mixers:
        x = run(block, x)
    assert (network.hidden(batch) - network.norm(x)).abs().max() < 1e-12


def test_has_about_as_many_parameters_as_a_transformer_block():
    sizes = {}
    for name, own in (("isab", {}), ("transformer", {})):
        network = model(task(), name, own=own, width=64, ff_width=128)
        sizes[name] = network.parameter_parts()["body"]
    assert abs(sizes["isab"] / sizes["transformer"] - 1) < 0.1


def attention_block(part, x, y, heads, scale):
    """Compute the block of the authors' modules.py with divisor 1 / ``scale`` of the scores."""
    q, k, v = part.query(x), part.key(y), part.value(y)
    parts = [torch.softmax(a @ b.mT * scale, -1) @ c for a, b, c in
             zip(*(each.chunk(heads, -1) for each in (q, k, v)), strict=True)]  # fmt: skip
    o = part.read_norm(q + torch.cat(parts, -1))
    return part.norm(o + torch.relu(part.feed_forward(o)))


@pytest.mark.agrees("isab", compared="ISAB of modules.py with and without norms", within=1e-12)
@pytest.mark.parametrize("norm", [True, False])
def test_equals_the_authors(norm, within):
    mixer, x = make("isab", norm=norm, points=3), rows(2, 9)
    gathered = attention_block(mixer.gather, mixer.points, x, mixer.heads, WIDTH**-0.5)
    expected = attention_block(mixer.spread, x, gathered, mixer.heads, WIDTH**-0.5)
    assert (run(mixer, x) - expected).abs().max() <= within


def test_scores_can_be_scaled_by_the_width_of_a_head():
    mixer, x = make("isab", scale="head", points=3), rows(2, 9)
    scale = (WIDTH // mixer.heads) ** -0.5
    expected = attention_block(
        mixer.spread, x, attention_block(mixer.gather, mixer.points, x, mixer.heads, scale), mixer.heads, scale
    )
    assert (run(mixer, x) - expected).abs().max() < 1e-12


def test_norms_and_biases_can_be_disabled():
    mixer = make("isab", norm=False, qkv_bias=False, points=3)
    names = " ".join(name for name, _ in mixer.named_parameters())
    assert "norm" not in names and names.count("bias") == 2


@pytest.mark.parametrize(
    ("own", "option"),
    [
        ({"points": 0}, r"model\.mixer\.points=0"),
        ({"scale": "none"}, r"model\.mixer\.scale=none"),
        ({"head_dim": 5}, r"backbone\.head_dim=5"),
    ],
)
def test_invalid_options_are_rejected(own, option):
    with pytest.raises(UserError, match=option):
        make("isab", **own)
