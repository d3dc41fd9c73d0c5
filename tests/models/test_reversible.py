"""Blocks that save memory: reversible blocks, and feed-forward networks in chunks."""

import pytest
import torch

from lra_bench.checks.storage import Storages
from lra_bench.contracts import UserError
from lra_bench.profiling.flops import count_flops
from lra_bench.profiling.synthetic import synthetic_batch
from tests.support.mixer_cases import CASES, SPECS, context
from tests.support.model_cases import batch_for, model, randomise, task

SUPPORTED_MIXERS = sorted({name for name, _ in CASES if not SPECS[name].carries and SPECS[name].block == "core"})


def gradients(network, batch, seed=0):
    torch.manual_seed(seed)
    logits = network(batch).logits
    weights = [p for p in network.parameters() if p.requires_grad]
    return logits, torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)


def explicit_streams(network):
    """Return a replacement for ``run_reversibly`` in which autograd stores all activations."""

    def run(blocks, x, context):
        first = second = x
        for depth, block in enumerate(blocks):
            y, context = block.mix(second, context.replace(depth=depth))
            first = first + y
            second = second + block.transform(first, context)[0]
        return (first + second) / 2, context

    return run


def stored_elements(network, batch):
    """Return the number of elements that autograd stores for the backward pass, without weights."""
    weights = {p.data_ptr() for p in network.parameters()}
    found = {}

    def note(tensor):
        if tensor.data_ptr() not in weights:
            found[tensor.data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = network(batch).logits
    assert output.requires_grad
    return sum(found.values())


class TestReversible:
    @pytest.mark.one_in(6, 3)
    @pytest.mark.parametrize("mixer", SUPPORTED_MIXERS)
    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_gradients_equal_those_of_stored_activations(self, mixer, dropout, monkeypatch):
        network = randomise(model(task(), mixer, reversible=True, dropout=dropout, depth=3)).train()
        batch = batch_for(task())
        if model(task(), mixer).train()(batch).losses:
            with pytest.raises(UserError, match=r"backbone\.reversible=true: .* returns losses"):
                gradients(network, batch)
            return
        found = gradients(network, batch)
        monkeypatch.setattr("lra_bench.models.backbone.run_reversibly", explicit_streams(network))
        expected = gradients(network, batch)
        assert torch.equal(found[0], expected[0])
        for (name, _), one, other in zip(network.named_parameters(), found[1], expected[1], strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                assert (one - other).abs().max() <= 1e-8 * (1 + other.abs().max()), name

    def test_the_backward_pass_restores_the_random_state(self):
        network = model(task(), reversible=True, dropout=0.3).train()
        torch.manual_seed(0)
        loss = network(batch_for(task())).logits.sum()
        before = torch.get_rng_state()
        loss.backward()
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_graph_supports_two_backward_passes(self):
        network = model(task(), reversible=True, dropout=0.3).train()
        loss = network(batch_for(task())).logits.sum()
        first, second = (torch.autograd.grad(loss, list(network.parameters()), retain_graph=True) for _ in range(2))
        assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))

    def test_another_seed_gives_another_dropout_mask(self):
        network, batch = model(task(), reversible=True, dropout=0.3).train(), batch_for(task())
        assert not torch.equal(gradients(network, batch)[0], gradients(network, batch, seed=1)[0])

    def test_stored_activations_do_not_grow_with_depth(self):
        def at(depth, reversible):
            return stored_elements(model(task(), depth=depth, reversible=reversible), batch_for(task()))

        assert at(2, True) == at(8, True)
        assert at(8, False) > at(2, False) > 2 * at(8, True)

    def test_a_step_costs_one_more_forward_pass(self):
        spec = task()
        batch = synthetic_batch(spec, 2, 24, "cpu")
        plain, reversible = (count_flops(model(spec, reversible=each).float(), batch) for each in (False, True))
        assert reversible.forward == plain.forward
        assert plain.training + 0.98 * plain.forward < reversible.training <= plain.training + plain.forward

    def test_autocast_is_the_same_in_both_passes(self, monkeypatch):
        network, batch = randomise(model(task(), reversible=True, dropout=0.3)).float().train(), batch_for(task())

        def half():
            with torch.autocast("cpu", torch.bfloat16):
                return gradients(network, batch)

        found = half()
        monkeypatch.setattr("lra_bench.models.backbone.run_reversibly", explicit_streams(network))
        expected = half()
        assert torch.equal(found[0], expected[0])
        for one, other in zip(found[1], expected[1], strict=True):
            assert (one - other).norm() < 0.03 * other.norm() + 1e-6

    def test_the_output_is_the_mean_of_both_streams(self):
        """With one block: the mean of x + mixer(x) and x + feed_forward(x + mixer(x))."""
        network, batch = randomise(model(task(), depth=1, reversible=True)), batch_for(task())
        plain = model(task(), depth=1)
        plain.load_state_dict(network.state_dict())
        inputs = []
        plain.blocks[0].register_forward_pre_hook(lambda module, args: inputs.append(args))
        plain.hidden(batch)
        (x, context), block = inputs[0], network.blocks[0]
        first = x + block.mix(x, context)[0]
        expected = network.norm((first + x + block.transform(first, context)[0]) / 2)
        assert (network.hidden(batch) - expected).abs().max() < 1e-12

    @pytest.mark.parametrize(
        ("mixer", "options", "reason"),
        [
            ("transformer", {"norm_place": "post"}, "norm after the residual sum"),
            ("transformer", {"norm": "batch"}, "batch statistics"),
            ("transformer", {"feed_forward": False}, "needs feed-forward networks"),
            ("Accumulating", {}, "layer to layer"),
            ("Remembering", {}, "memory"),
        ],
    )
    def test_blocks_that_are_not_invertible_raise_user_error(self, mixer, options, reason):
        direction = "causal" if mixer == "Remembering" else "either"
        with pytest.raises(UserError, match=rf"backbone\.reversible=true.*{reason}"):
            model(task(direction=direction), mixer, "none", reversible=True, **options)

    def test_losses_raise_user_error(self, monkeypatch):
        network = model(task(), reversible=True)
        forward = network.mixers[0].forward
        monkeypatch.setattr(
            network.mixers[0],
            "forward",
            lambda x, context: (forward(x, context)[0], context.add_loss("extra", x.square().mean())),
        )
        with pytest.raises(UserError, match=r"backbone\.reversible=true: SoftmaxAttention returns losses"):
            network(batch_for(task()))


class TestChunks:
    @pytest.mark.parametrize("chunks", [2, 3, 24, 100])
    @pytest.mark.parametrize("options", [{}, {"norm_place": "post"}, {"reversible": True}])
    def test_chunks_change_neither_outputs_nor_gradients(self, chunks, options):
        batch = batch_for(task())
        found = gradients(randomise(model(task(), feed_forward_chunks=chunks, **options)), batch)
        expected = gradients(randomise(model(task(), **options)), batch)
        assert (found[0] - expected[0]).abs().max() < 1e-12
        for one, other in zip(found[1], expected[1], strict=True):
            assert (one - other).abs().max() < 1e-9

    def test_recomputation_uses_the_same_dropout_mask(self):
        """The gradient predicts the change of the output with the dropout mask of the forward pass."""
        network = model(task(), feed_forward_chunks=3, dropout=0.3, reversible=False).train()
        x = torch.randn(2, 24, 16, dtype=torch.float64).requires_grad_()
        torch.manual_seed(0)
        y = network.blocks[0].transform(x, context(24))[0]
        (gradient,) = torch.autograd.grad(y.sum(), x)
        direction, step = torch.randn_like(x), 1e-6
        torch.manual_seed(0)
        moved = network.blocks[0].transform((x + step * direction).detach(), context(24))[0]
        assert abs(((moved - y).sum() / step - (gradient * direction).sum()).item()) < 1e-4

    def test_only_one_chunk_is_in_memory(self):
        batch, sizes = batch_for(task(length=96), (96, 96, 96)), []
        for chunks in (1, 8):
            network = model(task(length=96), ff_width=1024, feed_forward_chunks=chunks)
            with Storages() as probe:
                network(batch).logits.sum().backward()
            sizes.append((max(probe.sizes), stored_elements(network, batch)))
        assert sizes[0][0] == 3 * 96 * 1024 == 8 * max(sizes[1][0], 3 * 12 * 1024)
        assert sizes[1][1] < sizes[0][1] / 4

    def test_zero_chunks_raise_user_error(self):
        with pytest.raises(UserError, match=r"backbone\.feed_forward_chunks=0"):
            model(task(), feed_forward_chunks=0)
