"""Each interface between backbone and mixers works, tested with a small mixer that uses only this interface."""

import dataclasses
from typing import Any

import pytest
import torch

from lra_bench.contracts import Batch, Capability, UserError
from tests.support.model_cases import batch_for, model, randomise, task

LANGUAGE = task("language_modeling", "causal", classes=11)


def cut(batch, start, stop):
    """Return positions ``start`` to ``stop`` of all sequences of a batch."""
    lengths = (batch.lengths - start).clamp(0, stop - start)
    return Batch(lengths, batch.targets[:, start:stop], batch.tokens[:, start:stop])


class TestMemory:
    @pytest.mark.parametrize("cuts", [(8, 16), (1, 2, 3), (23,), (5, 6, 20)])
    @pytest.mark.parametrize("position", ["none", "sinusoidal"])
    def test_windows_with_memory_equal_one_pass(self, cuts, position):
        network = randomise(model(LANGUAGE, "Remembering", position))
        batch = batch_for(LANGUAGE, (24, 24, 19))
        memory: Any = None
        parts = []
        for start, stop in zip((0, *cuts), (*cuts, 24), strict=True):
            output = network(cut(batch, start, stop), memory)
            memory = output.memory
            parts.append(output.logits)
        valid = torch.arange(24) < batch.lengths[:, None]
        difference = (torch.cat(parts, 1) - network(batch).logits)[valid]
        assert difference.abs().max() < 1e-10
        assert memory["seen"].tolist() == [24, 24, 19]
        alone = torch.cat([network(cut(batch, 0, 12)).logits, network(cut(batch, 12, 24)).logits], 1)
        assert (alone - network(batch).logits)[valid].abs().max() > 1e-3

    def test_zeros_are_the_empty_memory_and_sequences_reset_separately(self):
        network = randomise(model(LANGUAGE, "Remembering"))
        first, second = batch_for(LANGUAGE, (10, 10), seed=1), batch_for(LANGUAGE, (10, 10), seed=2)
        memory = network(first).memory
        kept = torch.tensor([1.0, 0.0], dtype=torch.float64)
        reset = torch.utils._pytree.tree_map(lambda t: (t * kept.view(-1, *[1] * (t.dim() - 1))).to(t.dtype), memory)
        after = network(second, reset).logits
        assert torch.equal(after[0], network(second, memory).logits[0])
        assert (after[1] - network(second).logits[1]).abs().max() < 1e-12

    def test_memory_can_be_indexed_by_sequence(self):
        network = randomise(model(LANGUAGE, "Remembering"))
        first, second = batch_for(LANGUAGE, (10, 8, 9), seed=1), batch_for(LANGUAGE, (10, 10, 10), seed=2)
        memory = network(first).memory
        whole = network(second, memory)
        for row in range(3):
            own = torch.utils._pytree.tree_map(lambda t, row=row: t[row : row + 1], memory)
            assert (network(second.rows(row, row + 1), own).logits - whole.logits[row]).abs().max() < 1e-12

    def test_batches_on_another_device_keep_their_lengths_on_the_host(self):
        batch = batch_for(LANGUAGE, (10, 8, 9)).to("meta")
        assert batch.lengths.device.type == "meta" and batch.host_lengths.tolist() == [10, 8, 9]
        part = batch.rows(1, 3)
        assert part.host_lengths.tolist() == [8, 9] and part.to("meta").full is False

    def test_systems_without_memory_return_none(self):
        assert model(task())(batch_for(task())).memory is None

    def test_memory_requires_positions_of_any_length(self):
        with pytest.raises(UserError, match=r"position\.extend"):
            model(LANGUAGE, "Remembering", "learned")
        long = model(LANGUAGE, "Remembering", {"_target_": POSITION, "extend": "clamp"})
        memory: Any = None
        for _ in range(4):
            memory = long(batch_for(LANGUAGE, (24, 24)), memory).memory
        assert memory["seen"].tolist() == [96, 96]


POSITION = "lra_bench.models.positions.learned.LearnedPosition"


class TestCarry:
    def test_scores_accumulate_over_layers(self):
        network = randomise(model(task(), "Accumulating", norm_place="post"))
        batch = batch_for(task(), (24, 24))
        x = network.position.embed(network.embedding(batch.tokens), torch.arange(24))
        scores = torch.zeros(1, dtype=torch.float64)
        for block in network.blocks:
            q, k, v = block.mixer.project(x)
            scores = scores + q @ k.mT * block.mixer.head_dim**-0.5
            x = block.mixer_norm(x + block.mixer.merge(scores.softmax(-1) @ v))
            x = block.feed_forward_norm(x + block.feed_forward(x))
        assert (network.hidden(batch) - x).abs().max() < 1e-12

    def test_carried_values_do_not_persist_between_batches(self):
        network = model(task(), "Accumulating")
        assert torch.equal(network(batch_for(task())).logits, network(batch_for(task())).logits)


class TestPrefix:
    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_prefix_rows_are_counted_and_masked(self, pooling):
        network = randomise(model(task(), "Relay", pooling=pooling))
        seen = []
        network.blocks[1].register_forward_pre_hook(lambda module, args: seen.append(args))
        batch = batch_for(task())
        network(batch)
        x, context = seen[0]
        prefix = 3 if pooling == "cls" else 2
        assert context.prefix == prefix and x.shape[1] == 24 + prefix
        assert context.positions.tolist() == [-1] * prefix + list(range(24))
        assert context.padding.lengths.tolist() == [24 + prefix, 17 + prefix, 1 + prefix]
        assert network.hidden(batch).shape == (3, 24, 16)

    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_padding_has_no_effect(self, pooling):
        network = randomise(model(task(), "Relay", pooling=pooling))
        short, long = batch_for(task(), (17, 9)), batch_for(task(), (17, 9), width=24)
        long.tokens[:, :17] = short.tokens
        assert (network(short).logits - network(long).logits).abs().max() < 1e-12

    def test_mean_pooling_excludes_prefix_rows(self):
        network = randomise(model(task(), "Relay"))
        batch = batch_for(task())
        valid = (torch.arange(24) < batch.lengths[:, None]).double()
        mean = (network.hidden(batch) * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        assert (network.head(mean) - network(batch).logits).abs().max() < 1e-12

    def test_prefix_rows_have_gradients(self):
        network = model(task(), "Relay")
        network(batch_for(task())).logits.square().sum().backward()
        assert network.mixers[0].start.grad.abs().max() > 0

    def test_every_token_has_an_output(self):
        spec = task("tagging")
        assert model(spec, "Relay")(batch_for(spec)).logits.shape == (3, 24, 3)


class TestStatistics:
    def test_forward_changes_no_buffer_and_after_step_does(self):
        network = model(task(), "Centring").train()
        before = {key: value.clone() for key, value in network.state_dict().items()}
        output = network(batch_for(task()))
        assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
        assert set(output.statistics) == {"blocks.0.mixer", "blocks.1.mixer"}
        for module in network.mixers:
            reported = output.statistics[module.statistics_name]
            assert not reported["total"].requires_grad
            module.after_step(0, reported)
            assert (module.mean - reported["total"] / 42 / 2).abs().max() < 1e-12

    def test_statistics_of_micro_batches_add_up(self):
        network, batch = model(task(), "Centring").train(), batch_for(task())
        whole = network(batch).statistics
        parts = [network(batch.rows(a, b)).statistics for a, b in ((0, 1), (1, 3))]
        for name, values in whole.items():
            for key, value in values.items():
                assert (value - sum(part[name][key] for part in parts)).abs().max() < 1e-10

    def test_statistics_of_a_shared_module_are_summed(self):
        network = model(task(), "Centring").train()
        network.blocks[1] = network.blocks[0]
        output = network(batch_for(task()))
        assert output.statistics["blocks.0.mixer"]["count"] == 2 * 42


def test_auxiliary_losses_are_returned_and_have_gradients():
    network = model(task(), "Penalised")
    output = network(batch_for(task()))
    assert set(output.losses) == {"size"} and output.losses["size"].dim() == 0
    output.losses["size"].backward()
    assert all(mixer.linear.weight.grad.abs().max() > 0 for mixer in network.mixers)


def test_a_self_contained_system_replaces_the_block():
    network, batch = model(task(), "SelfContained", "none"), batch_for(task(), (24,))
    assert (network.norm(4 * network.embedding(batch.tokens)) - network.hidden(batch)).abs().max() < 1e-12


class TestDirection:
    """Tagging works in both directions; a task that requires a direction rejects a mixer without it, with a reason."""

    @pytest.mark.parametrize(("mixer", "causal"), [("BothWays", False), ("OneWay", True), ("transformer", False)])
    def test_tagging_runs_in_the_direction_of_the_mixer(self, mixer, causal):
        spec = task("tagging")
        network, batch = randomise(model(spec, mixer)), batch_for(spec, (24, 24))
        assert network.supports(spec) is None and network.causal is causal
        changed = batch.tokens.clone()
        changed[:, 12:] = (changed[:, 12:] + 1) % 11
        after = network(Batch(batch.lengths, batch.targets, changed)).logits
        difference = (after - network(batch).logits)[:, :12].abs().max()
        assert difference < 1e-12 if causal else difference > 1e-4

    def test_tagging_runs_causally_on_request(self):
        spec = task("tagging")
        assert model(spec, causal=True).mixers[0].causal

    @pytest.mark.parametrize(
        ("mixer", "direction", "word"), [("BothWays", "causal", "causal"), ("OneWay", "bidirectional", "bidirectional")]
    )
    def test_an_unsupported_direction_has_a_reason(self, mixer, direction, word):
        spec = task("tagging", direction)
        reason = model(spec, mixer).supports(spec)
        assert reason is not None and word in reason and mixer in reason

    @pytest.mark.parametrize(
        ("direction", "causal", "bidirectional", "form", "reason"),
        [
            ("either", None, True, "none", None),
            ("either", True, True, "exact", None),
            ("either", False, True, "none", None),
            ("causal", True, True, "exact", None),
            ("either", True, True, "pseudo", "no exact causal form, which backbone.causal=true needs"),
            ("either", False, False, "exact", "no bidirectional form, which backbone.causal=false needs"),
            ("causal", None, True, "none", "no exact causal form, which made_up needs"),
            ("causal", False, True, "exact", "backbone.causal=false: made_up is causal; leave it out"),
            ("bidirectional", True, True, "exact", "backbone.causal=true: made_up is bidirectional; leave it out"),
        ],
    )
    def test_refuses_direction(self, direction, causal, bidirectional, form, reason):
        capability = Capability(family="test", paper="none", bidirectional=bidirectional, causal=form)
        found = capability.refuses_direction(
            dataclasses.replace(task("tagging", direction), name="made_up"), causal, "One"
        )
        assert (found is None) if reason is None else found.endswith(reason)

    def test_an_unsupported_direction_in_the_configuration_is_a_user_error(self):
        with pytest.raises(UserError, match="causal"):
            model(task("tagging"), "BothWays", causal=True)
        with pytest.raises(UserError, match="no bidirectional form"):
            model(task("tagging"), "OneWay", causal=False)


class TestLength:
    @pytest.mark.parametrize(
        ("mixer", "fits", "refuses"), [("Bounded", (1, 24), (25,)), ("Fixed", (24,), (23, 25)), ("local", (1, 999), ())]
    )
    def test_unsupported_lengths_name_the_option_to_change(self, mixer, fits, refuses):
        network = model(task(), mixer)
        assert all(network.supports_length(n) is None for n in fits)
        for n in refuses:
            assert "backbone.max_length" in network.supports_length(n)
            with pytest.raises(UserError, match=str(n)):
                network(batch_for(task(), (n,)))
