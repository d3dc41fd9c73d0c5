"""The option ``backbone.short_convolution``: a convolution with a residual connection in front of every mixer."""

import pytest
import torch

from lra_bench.contracts import Batch, UserError
from lra_bench.models.canon_layer import CanonLayer
from lra_bench.models.mixer import Context, Padding
from tests.support.mixer_cases import CASES, NODES, SPECS, context, rows
from tests.support.model_cases import batch_for, model, randomise, task
from tests.support.storage import exponents

WIDTH = 16
LENGTHS = (24, 17, 1)


def layer(size=4, causal=True):
    torch.manual_seed(0)
    return CanonLayer(WIDTH, size, causal=causal).double()


def spec_for(causal):
    return task("tagging", "causal" if causal else "bidirectional")


def close(a, b, tolerance=1e-10):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tolerance


@pytest.mark.agrees("backbone.short_convolution", compared="a sum over neighbours", within=1e-12)
@pytest.mark.parametrize(("size", "causal"), [(2, True), (4, True), (3, False), (5, False)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_equals_a_sum_over_neighbours(size, causal, prefix, within):
    """x_t plus the sum of the taps times the tokens they cover, in loops; prefix positions are left as they are."""
    convolution, lengths = layer(size, causal), [9, 4, 1]
    x = rows(3, prefix + 9)
    padding = Padding.from_lengths(torch.tensor(lengths) + prefix, prefix + 9)
    y, _ = convolution(x, Context(padding, torch.arange(prefix + 9), prefix=prefix))
    assert torch.equal(y[:, :prefix], x[:, :prefix])
    first = 1 - size if causal else -(size // 2)
    for row, length in enumerate(lengths):
        for t in range(length):
            expected = x[row, prefix + t].clone()
            for tap in range(size):
                if 0 <= t + first + tap < length:
                    expected += convolution.weight[tap] * x[row, prefix + t + first + tap]
            close(y[row, prefix + t], expected, within)


@pytest.mark.parametrize("lengths", [None, [8, 3, 0]])
@pytest.mark.parametrize("cut", [1, 2, 7])
def test_two_batches_of_a_stream_equal_one(lengths, cut):
    convolution, x = layer(), rows(3, 16)
    after = context(8).replace(keeps_memory=True)
    padding = None if lengths is None else Padding.from_lengths(torch.tensor(lengths), 8)
    _, last = convolution(x[:, :8], after.replace(padding=padding))
    y, _ = convolution(x[:, 8 : 8 + cut], context(cut).replace(keeps_memory=True), last)
    for row, length in enumerate(lengths or [8, 8, 8]):
        joined = torch.cat((x[row, :length], x[row, 8 : 8 + cut]))[None]
        close(y[row], convolution(joined, context(length + cut))[0][0, length:], 1e-12)
    assert convolution(x, context(16))[1] is None


@pytest.mark.parametrize(("size", "causal", "message"), [(1, True, "at least 2"), (4, False, "set 3 or 5")])
def test_a_wrong_size_raises_user_error(size, causal, message):
    with pytest.raises(UserError, match=rf"backbone\.short_convolution={size}: must be .*{message}"):
        model(spec_for(causal), short_convolution=size)


def test_costs_grow_with_the_length_and_not_faster():
    convolution = layer(4).float()

    def run_at(n):
        x = torch.randn(2, n, WIDTH, requires_grad=True)
        return convolution(x, context(n))[0]

    assert all(0.9 < exponent < 1.1 for exponent in exponents(run_at, [512, 1024, 2048])[0])


def test_the_other_initial_weights_are_those_of_the_model_without_convolution():
    plain, convolved = model(spec_for(True)), model(spec_for(True), short_convolution=4)
    own = dict(convolved.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(own.pop(name), parameter), name
    assert {tuple(parameter.shape) for parameter in own.values()} == {(4, 16)} and len(own) == 2


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("mixer", "causal"), CASES)
def test_every_mixer_reads_no_padding_and_no_later_token(mixer, causal):
    spec = spec_for(causal)
    options = {"short_convolution": 3, "position": "none", "max_length": 24}
    network, batch = randomise(model(spec, mixer, **options)), batch_for(spec, LENGTHS)
    assert not network.capability.equivariant
    valid = torch.arange(24) < batch.lengths[:, None]
    logits = network(batch).logits
    assert logits.isfinite().all()
    without = network(Batch(batch.lengths, batch.targets, torch.where(valid, batch.tokens, 3))).logits
    close(logits[valid], without[valid])
    if not causal:
        return
    for t in (0, 9, 16):
        later = torch.arange(24) > t
        changed = torch.where(later, (batch.tokens + 5) % 11, batch.tokens)
        close(logits[:2, : t + 1], network(Batch(batch.lengths, batch.targets, changed)).logits[:2, : t + 1])


@pytest.mark.parametrize("norm_place", ["pre", "post"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_affects_exactly_its_neighbours(norm_place, causal):
    """With a mixer that ignores other tokens, the output depends on the tokens that the kernels of two layers cover."""
    spec = spec_for(causal)
    own = {"kernel": 1}
    network = randomise(model(spec, "short_convolution", own=own, short_convolution=3, norm_place=norm_place, depth=2))
    batch = batch_for(spec, (24, 24))
    changed = batch.tokens.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 11
    difference = network(batch).logits - network(Batch(batch.lengths, batch.targets, changed)).logits
    affected = difference.abs().amax((0, 2)).gt(1e-9).nonzero().flatten().tolist()
    assert affected == (list(range(10, 15)) if causal else list(range(8, 13)))


@pytest.mark.parametrize("mixer", [name for name in NODES if SPECS[name].memory])
def test_a_stream_in_two_batches_equals_one_batch(mixer):
    spec = task("language_modeling", "causal", classes=11)
    network = randomise(model(spec, mixer, short_convolution=4))
    batch = batch_for(spec, (24, 24))
    whole = network(batch).logits
    first, second = (
        Batch(torch.tensor([n, n]), batch.targets[:, a : a + n], batch.tokens[:, a : a + n])
        for a, n in ((0, 9), (9, 15))
    )
    start = network(first)
    close(torch.cat((start.logits, network(second, start.memory).logits), 1), whole, 1e-9)


def test_reversible_blocks_contain_the_convolution():
    spec = task(direction="causal")
    network, batch = randomise(model(spec, reversible=True, short_convolution=4)).train(), batch_for(spec)
    network(batch).logits.square().sum().backward()
    assert all(block.convolution.weight.grad.abs().max() > 0 for block in network.blocks)
