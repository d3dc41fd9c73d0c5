"""Blocks that save memory: two streams computed back, and feed-forward networks in parts."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.profiling.flops import count_flops
from lra_bench.profiling.synthetic import synthetic_batch
from tests.support.mixer_cases import CASES, SPECS, context
from tests.support.model_cases import batch_for, model, randomise, task
from tests.support.storage_probe import LargestStorage

EVERY = sorted({name for name, _ in CASES if not SPECS[name].carries and SPECS[name].block == "core"})


def gradients(network, batch, seed=0):
    torch.manual_seed(seed)
    logits = network(batch).logits
    weights = [p for p in network.parameters() if p.requires_grad]
    return logits, torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)


def two_streams(network):
    """The same network, its streams written out for autograd to keep everything."""

    def run(blocks, x, context):
        first = second = x
        for depth, block in enumerate(blocks):
            y, context = block.mix(second, context.replace(depth=depth))
            first = first + y
            second = second + block.transform(first, context)[0]
        return (first + second) / 2, context

    return run


def kept(network, batch):
    """Elements that autograd keeps for the backward pass, weights left out."""
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
    @pytest.mark.parametrize("mixer", EVERY)
    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_gradients_equal_those_of_the_plain_equations(self, mixer, dropout, monkeypatch):
        network = randomise(model(task(), mixer, reversible=True, dropout=dropout, depth=3)).train()
        batch = batch_for(task())
        if model(task(), mixer).train()(batch).losses:
            with pytest.raises(UserError, match=r"backbone\.reversible=true: .* returns losses"):
                gradients(network, batch)
            return
        ours = gradients(network, batch)
        monkeypatch.setattr("lra_bench.models.backbone.run_reversibly", two_streams(network))
        expected = gradients(network, batch)
        assert torch.equal(ours[0], expected[0])
        for (name, _), one, other in zip(network.named_parameters(), ours[1], expected[1], strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                assert (one - other).abs().max() <= 1e-8 * (1 + other.abs().max()), name

    def test_draws_of_the_backward_pass_leave_the_generator_alone(self):
        network = model(task(), reversible=True, dropout=0.3).train()
        torch.manual_seed(0)
        loss = network(batch_for(task())).logits.sum()
        before = torch.get_rng_state()
        loss.backward()
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_graph_can_be_walked_twice(self):
        network = model(task(), reversible=True, dropout=0.3).train()
        loss = network(batch_for(task())).logits.sum()
        once, twice = (torch.autograd.grad(loss, list(network.parameters()), retain_graph=True) for _ in range(2))
        assert all(torch.equal(*pair) for pair in zip(once, twice, strict=True))

    def test_another_seed_drops_otherwise(self):
        network, batch = model(task(), reversible=True, dropout=0.3).train(), batch_for(task())
        assert not torch.equal(gradients(network, batch)[0], gradients(network, batch, seed=1)[0])

    def test_what_is_kept_does_not_grow_with_depth(self):
        def at(depth, reversible):
            return kept(model(task(), depth=depth, reversible=reversible), batch_for(task()))

        assert at(2, True) == at(8, True)
        assert at(8, False) > at(2, False) > 2 * at(8, True)

    def test_time_is_a_forward_pass_more(self):
        spec = task()
        batch = synthetic_batch(spec, 2, 24, "cpu")
        plain, ours = (count_flops(model(spec, reversible=each).float(), batch) for each in (False, True))
        assert ours.forward == plain.forward
        assert plain.training + 0.98 * plain.forward < ours.training <= plain.training + plain.forward

    def test_autocast_is_the_same_in_both_passes(self, monkeypatch):
        network, batch = randomise(model(task(), reversible=True, dropout=0.3)).float().train(), batch_for(task())

        def half():
            with torch.autocast("cpu", torch.bfloat16):
                return gradients(network, batch)

        ours = half()
        monkeypatch.setattr("lra_bench.models.backbone.run_reversibly", two_streams(network))
        expected = half()
        assert torch.equal(ours[0], expected[0])
        for one, other in zip(ours[1], expected[1], strict=True):
            assert (one - other).norm() < 0.03 * other.norm() + 1e-6

    def test_both_streams_reach_the_end(self):
        """One block: the mean of x + mixer and x + feed-forward of that."""
        network, batch = randomise(model(task(), depth=1, reversible=True)), batch_for(task())
        plain = model(task(), depth=1)
        plain.load_state_dict(network.state_dict())
        seen = []
        plain.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args))
        plain.hidden(batch)
        (x, context), block = seen[0], network.blocks[0]
        first = x + block.mix(x, context)[0]
        expected = network.norm((first + x + block.transform(first, context)[0]) / 2)
        assert (network.hidden(batch) - expected).abs().max() < 1e-12

    @pytest.mark.parametrize(
        ("mixer", "options", "reason"),
        [
            ("transformer", {"norm_place": "post"}, "norm after the sum"),
            ("transformer", {"norm": "batch"}, "norm over the batch"),
            ("transformer", {"feed_forward": False}, "no feed-forward networks"),
            ("Accumulating", {}, "layer to layer"),
            ("Remembering", {}, "memory"),
        ],
    )
    def test_what_cannot_be_undone_is_refused(self, mixer, options, reason):
        direction = "causal" if mixer == "Remembering" else "either"
        with pytest.raises(UserError, match=rf"backbone\.reversible=true.*{reason}"):
            model(task(direction=direction), mixer, "none", reversible=True, **options)

    def test_losses_are_refused(self, monkeypatch):
        network = model(task(), reversible=True)
        attend = network.mixers[0].forward
        monkeypatch.setattr(
            network.mixers[0],
            "forward",
            lambda x, context: (attend(x, context)[0], context.add_loss("extra", x.square().mean())),
        )
        with pytest.raises(UserError, match=r"backbone\.reversible=true: SoftmaxAttention returns losses"):
            network(batch_for(task()))


class TestChunks:
    @pytest.mark.parametrize("chunks", [2, 3, 24, 100])
    @pytest.mark.parametrize("options", [{}, {"norm_place": "post"}, {"reversible": True}])
    def test_equals_the_whole_with_gradients(self, chunks, options):
        batch = batch_for(task())
        ours = gradients(randomise(model(task(), feed_forward_chunks=chunks, **options)), batch)
        expected = gradients(randomise(model(task(), **options)), batch)
        assert (ours[0] - expected[0]).abs().max() < 1e-12
        for one, other in zip(ours[1], expected[1], strict=True):
            assert (one - other).abs().max() < 1e-9

    def test_computing_again_drops_the_same(self):
        """The network that is dropped is the one whose gradient is taken: of a linear one, doubling doubles."""
        network = model(task(), feed_forward_chunks=3, dropout=0.3, reversible=False).train()
        x = torch.randn(2, 24, 16, dtype=torch.float64).requires_grad_()
        torch.manual_seed(0)
        y = network.blocks[0].transform(x, context(24))[0]
        (gradient,) = torch.autograd.grad(y.sum(), x)
        direction, step = torch.randn_like(x), 1e-6
        torch.manual_seed(0)
        moved = network.blocks[0].transform((x + step * direction).detach(), context(24))[0]
        assert abs(((moved - y).sum() / step - (gradient * direction).sum()).item()) < 1e-4

    def test_only_a_part_is_held(self):
        batch, sizes = batch_for(task(length=96), (96, 96, 96)), []
        for chunks in (1, 8):
            network = model(task(length=96), ff_width=1024, feed_forward_chunks=chunks)
            with LargestStorage() as probe:
                network(batch).logits.sum().backward()
            sizes.append((probe.elements, kept(network, batch)))
        assert sizes[0][0] == 3 * 96 * 1024 == 8 * max(sizes[1][0], 3 * 12 * 1024)
        assert sizes[1][1] < sizes[0][1] / 4

    def test_no_part_is_refused(self):
        with pytest.raises(UserError, match=r"backbone\.feed_forward_chunks=0"):
            model(task(), feed_forward_chunks=0)
