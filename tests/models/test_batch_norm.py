"""Batch normalisation over real tokens: padding, running statistics, checkpoints, several ranks."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from lra_bench.config.schema import Backbone, CellConfig, Train
from lra_bench.config.validation import check_machine
from lra_bench.contracts import Batch, UserError
from lra_bench.models.batch_norm import BatchNorm
from lra_bench.training.loop import after_step, stepped_modules
from tests.support.mixer_cases import context, rows
from tests.support.model_cases import batch_for, model, randomise, task
from tests.support.parallel_ranks import Case, in_ranks, trained
from tests.training.test_parallel import OPTIONS, TOLERANCE, difference, parallel_options

LENGTHS = [13, 7, 1, 0]
SHORT = ["train.steps=6", "train.evaluate_every=3", "train.batch_size=7", "backbone.norm=batch", "model=transformer"]


def norm_for_context(width=16):
    norm = randomise(BatchNorm(width).double())
    norm.statistics_name = "norm"
    return norm


def torch_norm(norm):
    """Return torch's norm of single vectors with the same weights."""
    other = nn.BatchNorm1d(16, eps=norm.eps, momentum=norm.momentum).double()
    other.weight.data, other.bias.data = norm.weight.data.clone(), norm.bias.data.clone()
    return other


def real(x, lengths=LENGTHS):
    return torch.cat([row[:length] for row, length in zip(x, lengths, strict=True)])


class TestTraining:
    @pytest.mark.parametrize("garbage", [0.0, 1e6])
    def test_equals_torch_on_the_real_tokens(self, garbage):
        """Outputs, gradients of input and weights, and running statistics after two steps."""
        norm, reference = norm_for_context(), torch_norm(norm_for_context())
        x = rows(4, 13)
        valid = torch.arange(13) < torch.tensor(LENGTHS)[:, None]
        x = torch.where(valid[..., None], x, garbage * rows(4, 13, seed=1)).requires_grad_()
        weights = rows(4, 13, seed=2)
        for step in range(2):
            y, after = norm(x, context(13, LENGTHS))
            expected = reference(real(x))
            assert (real(y) - expected).abs().max() < 1e-12
            found = torch.autograd.grad((real(y) * real(weights)).sum(), [x, norm.weight, norm.bias])
            gradients = torch.autograd.grad((expected * real(weights)).sum(), [x, reference.weight, reference.bias])
            for one, other in zip(found, gradients, strict=True):
                assert (one - other).abs().max() < 1e-10
            after_step([norm], step, after.statistics)
        assert (norm.running_mean - reference.running_mean).abs().max() < 1e-12
        assert (norm.running_variance - reference.running_var).abs().max() < 1e-12

    def test_forward_changes_no_buffer(self):
        norm = norm_for_context()
        before = {name: value.clone() for name, value in norm.named_buffers()}
        norm(rows(4, 13), context(13, LENGTHS))
        assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())

    def test_prefix_positions_do_not_enter_the_statistics(self):
        norm, x = norm_for_context(), rows(2, 9)
        y, after = norm(x, context(9).replace(prefix=2))
        without_prefix, expected = norm(x[:, 2:], context(7))
        assert (y[:, 2:] - without_prefix).abs().max() < 1e-12
        for name, value in expected.statistics["norm"].items():
            assert (after.statistics["norm"][name] - value).abs().max() < 1e-12

    def test_small_deviations_from_a_large_mean_keep_precision(self):
        norm = norm_for_context().float()
        y, _ = norm(rows(4, 64).float() + 3000, context(64))
        expected, _ = norm_for_context()(rows(4, 64), context(64))
        assert (y.double() - expected).abs().max() < 1e-2

    def test_a_batch_without_tokens_stays_finite(self):
        norm = norm_for_context()
        y, after = norm(rows(2, 3), context(3, [0, 0]))
        after_step([norm], 0, after.statistics)
        assert all(each.isfinite().all() for each in (y, norm.running_mean, norm.running_variance))

    def test_gradcheck(self):
        norm = norm_for_context(4)
        x = rows(2, 3)[..., :4].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: norm(x, context(3, [3, 2]))[0][:, :2], x)


def with_running_statistics(spec, **options):
    """Return a model with random weights and updated running statistics."""
    network = randomise(model(spec, norm="batch", **options)).train()
    for seed in range(3):
        output = network(batch_for(spec, seed=seed))
        after_step(stepped_modules(network), seed, output.statistics)
    return network.eval()


class TestEvaluation:
    @pytest.mark.parametrize("place", ["pre", "post"])
    @pytest.mark.parametrize("kind", ["classification", "tagging"])
    @pytest.mark.parametrize("feed_forward", [True, False])
    def test_padding_has_no_effect(self, kind, place, feed_forward):
        spec = task(kind)
        network = with_running_statistics(spec, norm_place=place, feed_forward=feed_forward)
        batch, wide = batch_for(spec), batch_for(spec, width=31, seed=3)
        wide.tokens[:, :24] = torch.where(torch.arange(24) < batch.lengths[:, None], batch.tokens, wide.tokens[:, :24])
        valid = torch.arange(24) < batch.lengths[:, None] if spec.per_token else torch.tensor(True)
        wider = network(Batch(batch.lengths, batch.targets, wide.tokens)).logits
        assert (network(batch).logits[valid] - (wider[:, :24] if spec.per_token else wider)[valid]).abs().max() < 1e-12

    def test_examples_are_independent(self):
        network, batch = with_running_statistics(task()), batch_for(task())
        logits = network(batch).logits
        assert all((network(batch.rows(n, n + 1)).logits[0] - logits[n]).abs().max() < 1e-12 for n in range(3))

    def test_running_statistics_are_saved_with_the_weights(self, tmp_path):
        one, other, batch = with_running_statistics(task()), model(task(), norm="batch", weights=1), batch_for(task())
        assert not torch.equal(one(batch).logits, other(batch).logits)
        save_model(one, str(tmp_path / "weights.safetensors"))
        load_model(other, str(tmp_path / "weights.safetensors"))
        assert torch.equal(one(batch).logits, other(batch).logits)


@pytest.mark.slow
def test_two_processes_train_as_one_and_an_interrupted_run_resumes(tmp_path):
    """Ranks get unequal batches with different padding, and sharded weights; checkpoints contain buffers."""
    alone = trained(Case(SHORT, str(tmp_path / "alone")))
    assert trained(Case(SHORT, str(tmp_path / "again"), stop_after=3)) == {}
    assert trained(Case(SHORT, str(tmp_path / "again"))) == alone
    cases = [Case(SHORT, str(tmp_path / name), sharded) for name, sharded in (("ddp", False), ("fsdp", True))]
    for found in in_ranks(cases, 2, tmp_path):
        assert difference(found, alone) <= TOLERANCE


def test_language_models_raise_user_error():
    with pytest.raises(UserError, match=r"backbone\.norm=batch.*set backbone\.norm=layer"):
        model(task("language_modeling", "causal", classes=11), norm="batch")


def test_micro_batches_raise_user_error():
    def check(options, norm):
        check_machine(CellConfig(hardware=options, train=Train(batch_size=8), backbone=Backbone(norm=norm)))

    check(replace(OPTIONS, micro_batch=8), "batch")
    check(parallel_options("ddp", 2, micro_batch=4), "batch")
    check(replace(OPTIONS, micro_batch=4), "layer")
    with pytest.raises(UserError, match=r"hardware\.micro_batch=4: backbone\.norm=batch"):
        check(replace(OPTIONS, micro_batch=4), "batch")
