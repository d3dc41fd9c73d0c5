"""Convolution and patches between the embedding and the first block."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import Batch, UserError
from lra_bench.models.stem import Patches, Stem
from tests.support.model_cases import batch_for, model, randomise, task
from tests.support.storage import exponents

IMAGE = task(channels=2, length=48, grid=(6, 8))
BOTH = {"stem": 3, "patch": 4}


def close(a, b, tolerance=1e-10):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tolerance


def states_before_blocks(network, batch):
    """Return the inputs of the first block."""
    seen = []
    hook = network.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    network(batch)
    hook.remove()
    return seen[0]


@pytest.mark.agrees("backbone.patch", compared="a loop over the pixels or tokens of each patch", within=1e-12)
@pytest.mark.parametrize("grid", [None, (6, 8), (4, 4)])
def test_patches_equal_a_loop(grid, within):
    torch.manual_seed(0)
    layer, x = Patches(5, 2, grid).double(), torch.randn(3, 13 if grid is None else grid[0] * grid[1], 5).double()
    found, expected = layer(x), []
    if grid is None:
        groups = [[place for place in (2 * patch, 2 * patch + 1) if place < 13] for patch in range(7)]
    else:
        columns = grid[1]
        groups = [
            [(row + down) * columns + column + right for down in range(2) for right in range(2)]
            for row in range(0, grid[0], 2)
            for column in range(0, columns, 2)
        ]
    for group in groups:
        joined = torch.cat([x[:, place] for place in group], -1)
        weight = layer.joined.weight[:, : joined.shape[-1]]  # the last patch of a sequence is filled with zeros
        expected.append(joined @ weight.T + layer.joined.bias)
    close(found, torch.stack(expected, 1), within)
    assert layer.count(torch.tensor([x.shape[1]])).tolist() == [len(groups)]


@pytest.mark.agrees("backbone.stem", compared="a loop over the tokens or pixels of each kernel", within=1e-12)
@pytest.mark.parametrize(("causal", "grid"), [(True, None), (False, None), (True, (4, 5)), (False, (4, 5))])
def test_the_stem_equals_a_loop(causal, grid, within):
    torch.manual_seed(0)
    layer, x = Stem(3, 3, causal=causal, grid=grid).double(), torch.randn(2, 20, 3).double()
    weight, bias = layer.convolution.weight, layer.convolution.bias
    expected = torch.zeros(2, 20, 3).double() + bias
    for place in range(20):
        if weight.dim() == 3:
            for tap in range(3):
                source = place + tap - (2 if causal else 1)
                if 0 <= source < 20:
                    expected[:, place] += x[:, source] @ weight[:, :, tap].T
            continue
        for down in range(3):
            for right in range(3):
                row, column = place // 5 + down - 1, place % 5 + right - 1
                if 0 <= row < 4 and 0 <= column < 5:
                    expected[:, place] += x[:, 5 * row + column] @ weight[:, :, down, right].T
    assert (weight.dim() == 4) == (grid is not None and not causal)
    close(layer(x), F.gelu(expected), within)


@pytest.mark.parametrize("mixer", ["transformer", "mamba2", "local", "lstm", "linformer"])
@pytest.mark.parametrize("options", [{"stem": 3}, {"patch": 4}, BOTH], ids=str)
def test_padding_does_not_count_in_a_classifier(mixer, options):
    spec = task()
    network, batch = randomise(model(spec, mixer, "none", **options)), batch_for(spec, (24, 17, 1))
    valid = torch.arange(24) < batch.lengths[:, None]
    other = torch.where(valid, batch.tokens, (batch.tokens + 5) % 11)
    close(network(Batch(batch.lengths, batch.targets, other)).logits, network(batch).logits)
    if mixer != "linformer":
        alone = network(Batch(batch.lengths[1:2], batch.targets[1:2], batch.tokens[1:2, :17])).logits
        close(alone, network(batch).logits[1:2])
    network.train()(batch).logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())


@pytest.mark.parametrize("mixer", ["transformer", "mamba2", "local", "lstm", "s4d"])
def test_a_causal_model_reads_no_later_token(mixer):
    spec = task("tagging", "causal")
    network, batch = randomise(model(spec, mixer, "none", stem=4)), batch_for(spec, (24, 24))
    for t in (0, 9, 22):
        later = torch.where(torch.arange(24) > t, (batch.tokens + 5) % 11, batch.tokens)
        changed = network(Batch(batch.lengths, batch.targets, later)).logits
        close(changed[:, : t + 1], network(batch).logits[:, : t + 1])
        assert (changed - network(batch).logits).abs().max() > 1e-3


@pytest.mark.parametrize("mixer", ["transformer", "mamba2", "lstm"])
def test_patches_of_a_causal_model_read_no_later_patch(mixer):
    spec = task(length=22)
    network = randomise(model(spec, mixer, "none", stem=2, patch=4, causal=True, pooling="last"))
    batch = batch_for(spec, (22, 22))
    states = network.hidden(batch)
    assert states.shape == (2, 6, 16)
    for t in (3, 11, 19):
        later = torch.where(torch.arange(22) > t, (batch.tokens + 5) % 11, batch.tokens)
        changed = network.hidden(Batch(batch.lengths, batch.targets, later))
        close(changed[:, : (t + 1) // 4], states[:, : (t + 1) // 4])
        assert (changed - states)[:, (t + 1) // 4 :].abs().max() > 1e-3


def test_images_have_square_patches_at_every_size_and_their_grid():
    network = model(IMAGE, position={"_target_": "lra_bench.models.positions.rope.RotaryPosition"}, patch=2, stem=3)
    assert network.inner.grid == (3, 4) and network.inner.train_length == 12 and network.max_length == 12
    assert states_before_blocks(network, batch_for(IMAGE, (48, 48))).shape == (2, 12, 16)
    square = model(task(channels=1, length=36, grid=(6, 6)), patch=3)
    assert states_before_blocks(square, batch_for(task(channels=1), (81,))).shape == (1, 9, 16)
    assert square.supports_length(144) is None
    assert "does not divide an image of 8 × 8 pixels" in square.supports_length(64)
    assert "are no image" in square.supports_length(50)


def test_lengths_are_counted_in_tokens():
    network = model(task(), "linformer", patch=4)
    assert network.max_length == 6 and network.supports_length(24) is None
    assert "takes at most 6 tokens" in (network.supports_length(25) or "")
    local = model(task(length=64), "local", patch=4, own={"window": 2})
    plain = model(task(length=64), "local", own={"window": 2})
    assert local.restricts_from() == 1 + 4 * (plain.restricts_from() - 1)


def test_parts_of_the_parameters_and_capabilities():
    spec = task()
    plain, changed = (model(spec, **options) for options in ({}, BOTH))
    before, after = plain.parameter_parts(), changed.parameter_parts()
    assert after["body"] == before["body"]
    assert after["embeddings"] - before["embeddings"] == 3 * 16 * 16 + 16 + 4 * 16 * 16 + 16
    assert not changed.capability.equivariant
    close(plain.blocks[0].mixer.query.weight, changed.blocks[0].mixer.query.weight, 0.0)
    assert "backbone.patch shortens" in changed.refuses_pretraining()
    assert model(spec, stem=3).refuses_pretraining() is None
    causal = model(task("tagging", "causal"), "mamba2", "none", stem=3)
    assert not causal.remembers and "no step form" in causal.refuses_steps()


def test_patches_divide_the_quadratic_storage_and_do_not_change_its_growth():
    def run_at(options):
        def run(length):
            spec = task(length=length)
            network = model(spec, "performer", **options)
            return network(batch_for(spec, (length,))).logits

        return run

    lengths = (256, 512, 1024)
    (plain, sizes), (patched, fewer) = (exponents(run_at(options), lengths) for options in ({}, {"patch": 8}))
    assert max(patched) < 1.2 and max(plain) < 1.2
    assert fewer[-1] < sizes[-1]
    assert max(exponents(run_at(BOTH), lengths)[0]) < 1.2


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (task("tagging"), {"patch": 2}, r"patch=2: toy scores every token, and a patch has one state; leave it out"),
        (task("language_modeling", "causal", classes=11), {"patch": 2}, r"patch=2: toy scores every token"),
        (IMAGE, {"patch": 4}, r"patch=4: does not divide an image of 6 × 8 pixels; choose a divisor"),
        (IMAGE, {"patch": 2, "causal": True}, r"patch=2: a square patch of pixels would pass later rows"),
        (task(), {"stem": 4}, r"stem=4: must be odd unless the model is causal, .*; set 3 or 5"),
    ],
)
def test_wrong_options_raise_user_error(spec, options, message):
    with pytest.raises(UserError, match=rf"backbone\.{message}"):
        model(spec, **options)


def test_a_controller_refuses_patches():
    from tests.support.model_cases import node_file

    controller = node_file("model", "universal")["model"]["controller"]
    with pytest.raises(UserError, match=r"backbone\.patch=2: model\.controller needs the state of every token"):
        model(task(), patch=2, controller=controller)
