"""The training loop: exact resumption, micro-batches, memory, statistics, and the best weights."""

import math
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.config.optimization import OPTIMIZERS, SCHEDULES
from lra_bench.config.schema import CellConfig, Measure, Train
from lra_bench.contracts import Batch, Output, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.runtime.hardware import Hardware, HardwareOptions, resolve
from lra_bench.training import loop, meter, sampling
from lra_bench.training.checkpoint import BEST, LAST, Checkpoints, State
from lra_bench.training.evaluation import evaluate
from lra_bench.training.loss import objective
from lra_bench.training.meter import Diverged
from lra_bench.training.optimizer import Optimizer, hinted_rates, parameter_groups

CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")
SPEC = TaskSpec("toy", "1", "classification", "either", classes=3, train_length=12, vocabulary_size=5)
RECIPE = Train(steps=12, batch_size=4, lr=1e-2, warmup_steps=3, weight_decay=0.01, evaluate_every=4)


def config(**changes):
    measure = Measure(evaluation_batch_size=8)
    return CellConfig(seed=7, model={"label": "toy"}, train=replace(RECIPE, **changes), measure=measure)


def rows(count=32, seed=0):
    generator = np.random.default_rng(seed)
    tokens = [generator.integers(1, 5, generator.integers(3, 13)).tolist() for _ in range(count)]
    table = {"tokens": tokens, "target": [sum(t) % 3 for t in tokens], "length": [len(t) for t in tokens]}
    return Rows(datasets.Dataset.from_dict(table), SPEC)


class Toy(nn.Module):
    """A bag-of-tokens classifier with dropout and a buffer that counts tokens, updated only after a step."""

    def __init__(self, dropout=0.3):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.drop: nn.Module = nn.Dropout(dropout)
        self.head = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.statistics_name = ""

    def forward(self, batch: Batch, memory=None) -> Output:
        valid = torch.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        mean = (self.table(batch.tokens) * valid[..., None]).sum(1) / batch.lengths[:, None]
        logits = self.head(self.drop(mean))
        losses = {"small": 1e-3 * logits.square().mean()}
        return Output(logits, losses, None, {"": {"tokens": batch.lengths.sum()}})

    def after_step(self, step, statistics):
        self.seen += statistics["tokens"]


class ComplexToy(Toy):
    """The classifier with a complex factor of each frequency of the mean, the natural form of a diagonal system."""

    def __init__(self, dropout=0.3):
        super().__init__(dropout)
        self.drop = nn.Sequential(Spectrum(), self.drop)


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.ifft(torch.fft.fft(x) * self.factors).real


def toy(seed=0, kind=Toy, **options):
    torch.manual_seed(seed)
    return kind(**options)


def fit(model, folder, stop_after=None, every_seconds=math.inf, hardware=CPU, floor=None, **changes):
    logged = []

    def log(step, values):
        logged.append((step, values))
        if stop_after is not None and step >= stop_after:
            raise KeyboardInterrupt

    checkpoints = Checkpoints(Path(folder), every_seconds)
    parts = {"train": rows(), "validation": rows(16, 1)}
    return loop.train(model, parts, SPEC, config(**changes), hardware, checkpoints, log, floor=floor), logged


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("kind", [Toy, ComplexToy])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, optimizer, kind):
    uninterrupted = toy(kind=kind)
    expected, _ = fit(uninterrupted, tmp_path / "whole", optimizer=optimizer)
    torch.manual_seed(99)  # the result must not depend on the state of the generator
    with pytest.raises(KeyboardInterrupt):
        fit(toy(kind=kind), tmp_path / "cut", stop_after=8, every_seconds=0, optimizer=optimizer)
    torch.manual_seed(5)
    resumed = toy(seed=3, kind=kind)
    found, _ = fit(resumed, tmp_path / "cut", every_seconds=0, optimizer=optimizer)
    assert equal(weights(uninterrupted), weights(resumed))
    assert found.state.curve == expected.state.curve
    assert found.state.validations == expected.state.validations
    assert found.figures["final_weights_sha256"] == expected.figures["final_weights_sha256"]
    assert (tmp_path / "cut" / BEST).read_bytes() == (tmp_path / "whole" / BEST).read_bytes()


def test_complex_parameters_are_trained_and_clipped(tmp_path):
    model = toy(kind=ComplexToy)
    before = weights(model)
    result, _ = fit(model, tmp_path, clip=1e-3, optimizer="sgd", weight_decay=0.0, schedule="constant", steps=1)
    changes = [(value - before[name]).abs() for name, value in weights(model).items() if name != "seen"]
    assert (model.drop[0].factors.imag != before["drop.0.factors"].imag).any()
    total = sum(change.square().sum() for change in changes).sqrt().item()
    assert total <= RECIPE.lr * 1.001e-3 and result.state.curve[0][2] > 1e-3


def test_complex_parameters_are_refused_in_fp16():
    with pytest.raises(UserError, match=r"fp16: does not support complex parameters.*view_as_real"):
        Optimizer(toy(kind=ComplexToy), RECIPE, replace(CPU, precision="fp16"))


def test_times_and_throughput_match_a_simulated_clock(tmp_path, monkeypatch):
    """Loading a batch takes 0.01 s, a training step 0.02 s, and a batch of an evaluation 5 s."""
    now = 0.0

    def advance(seconds):
        nonlocal now
        now += seconds

    class Timed(Toy):
        def forward(self, batch, memory=None):
            advance(0.02 if self.training else 5.0)
            return super().forward(batch)

    original = loop.training_batches

    def slow_batches(*arguments):
        batches = original(*arguments)
        return lambda step: advance(0.01) or batches(step)

    monkeypatch.setattr(loop, "training_batches", slow_batches)
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now)
    torch.manual_seed(0)
    figures = fit(Timed(), tmp_path, steps=40, evaluate_every=15)[0].figures
    assert figures["data_wait_share"] == pytest.approx(1 / 3)
    assert figures["steps_per_second"] == pytest.approx(1 / 0.03)
    assert figures["rows_per_second"] == pytest.approx(4 / 0.03)
    assert figures["train_seconds"] == pytest.approx(40 * 0.03)
    assert figures["evaluation_seconds"] == pytest.approx(3 * 2 * 5.0)  # after steps 15, 30 and 40, two batches each
    batches = original({"train": rows()}, RECIPE, 7)
    timed = sum(int(batches(step).lengths.sum()) for step in range(10, 40))  # after the warm-up
    assert figures["tokens_per_second"] == pytest.approx(timed / (30 * 0.03))


SCORES = {4: 0.3, 8: 0.7, 12: 0.8, 16: 0.9, 20: 0.9, 24: 0.5, 28: 0.9}
"""Validation scores by step. With a floor of 0.2 the skill exceeds one half from step 8 to 20 and 0.7 from 12 to 20."""


class Counting(Toy):
    """A model that counts the steps done in a buffer, which checkpoints contain."""

    steps: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def after_step(self, step, statistics):
        super().after_step(step, statistics)
        self.steps.add_(1)


@pytest.fixture
def scored(monkeypatch):
    """Replace validation scores by ``SCORES`` and the clock: a step takes 0.5 s, an evaluation 100 s.

    The fixture is a function that trains ``Counting`` with a floor of 0.2 and a checkpoint at every step.
    """
    now = 0.0
    step_of = Optimizer.step

    def timed(self, step):
        nonlocal now
        now += 0.5
        return step_of(self, step)

    def evaluated(model, *arguments, **options):
        nonlocal now
        now += 100.0
        return replace(evaluate(model, *arguments, **options), score=SCORES[int(model.steps)])

    def run(folder, **changes):
        torch.manual_seed(0)
        model = Counting()
        options = {"floor": 0.2, "steps": 28, "every_seconds": 0, **changes}
        return fit(model, folder, **options)[0], model

    monkeypatch.setattr(Optimizer, "step", timed)
    monkeypatch.setattr(loop, "evaluate", evaluated)
    monkeypatch.setattr(meter.time, "perf_counter", lambda: now)
    return run


@pytest.mark.parametrize("cut", [None, 4, 8, 20])
def test_take_off_is_the_training_time_until_its_evaluation_also_after_a_resumption(tmp_path, scored, cut):
    if cut:
        with pytest.raises(KeyboardInterrupt):
            scored(tmp_path, stop_after=cut)
    found, _ = scored(tmp_path)
    figures = found.figures
    assert (figures["takeoff_steps"], figures["takeoff_censored"], figures["stopped_early"]) == (8, False, False)
    assert figures["takeoff_seconds"] == pytest.approx(8 * 0.5)
    assert found.state.validation_seconds == pytest.approx([0.5 * step for step in SCORES])
    assert figures["train_seconds"] == pytest.approx(28 * 0.5)


@pytest.mark.parametrize(("stop_at", "last"), [(0.4, 16), (0.7, 20), (0.8, 28), (None, 28)])
def test_training_stops_after_three_evaluations_above_stop_at(tmp_path, scored, stop_at, last):
    found, model = scored(tmp_path, stop_at=stop_at)
    assert found.state.step == model.steps == found.figures["steps"] == last
    assert [step for step, _, _ in found.state.validations] == [step for step in SCORES if step <= last]
    assert found.figures["stopped_early"] == (last < 28)
    again, resumed = scored(tmp_path, stop_at=stop_at)  # resumes from the last checkpoint
    assert again.state.step == resumed.steps == last and again.state.curve == found.state.curve


@pytest.mark.parametrize("cut", [4, 8, 12, 16, 20])
def test_a_resumed_run_stops_at_the_same_step(tmp_path, scored, cut):
    expected, uninterrupted = scored(tmp_path / "whole", stop_at=0.7)
    with pytest.raises(KeyboardInterrupt):
        scored(tmp_path / "cut", stop_at=0.7, stop_after=cut)
    found, resumed = scored(tmp_path / "cut", stop_at=0.7)
    assert equal(weights(uninterrupted), weights(resumed))
    assert found.state.curve == expected.state.curve and found.state.validations == expected.state.validations
    names = ("steps", "best_step", "stopped_early", "takeoff_steps", "final_weights_sha256")
    assert [found.figures[name] for name in names] == [expected.figures[name] for name in names]


def test_without_a_floor_take_off_is_unknown_and_stop_at_is_refused(tmp_path, scored):
    figures = scored(tmp_path / "unknown", floor=None)[0].figures
    assert [figures[f"takeoff_{name}"] for name in ("steps", "seconds", "censored")] == [None] * 3
    with pytest.raises(UserError, match=r"train\.stop_at=0\.9: toy has no floor"):
        scored(tmp_path / "refused", floor=None, stop_at=0.9)


def test_curve_contains_gradient_norm_learning_rate_and_tokens_of_every_step(tmp_path, monkeypatch):
    """Compare with norms computed independently before clipping, the schedule, and tokens counted in the batches."""
    norms, rates = [], []
    step_of = Optimizer.step

    def watched(self, step):
        gradients = [p.grad.double().flatten() for p in self.parameters if p.grad is not None]
        norms.append(torch.cat(gradients).norm().item())
        norm = step_of(self, step)
        rates.append(self.wrapped.param_groups[0]["lr"])
        return norm

    monkeypatch.setattr(Optimizer, "step", watched)
    result, logged = fit(toy(), tmp_path, clip=0.05)
    batches = sampling.batches_of(rows(), RECIPE, 7)
    tokens = np.cumsum([int(batches(step).lengths.sum()) for step in range(12)])
    curve = result.state.curve
    assert [row[1] for row in curve] == pytest.approx(rates)
    assert rates == pytest.approx([1e-2 * SCHEDULES["linear"](step, 12, 3) for step in range(12)])
    assert [row[2] for row in curve] == pytest.approx(norms, rel=1e-5)
    assert [row[3] for row in curve] == tokens.tolist()
    figures = result.figures
    assert figures["tokens_seen"] == tokens[-1]
    assert figures["last_learning_rate"] == pytest.approx(rates[-1])
    assert figures["gradient_norm_median"] == pytest.approx(np.median(norms), rel=1e-5)
    assert figures["gradient_norm_max"] == pytest.approx(max(norms), rel=1e-5)
    assert figures["clipped_share"] == np.mean(np.array(norms) > 0.05)
    latest = logged[-1][1]
    assert (latest["gradient_norm"], latest["tokens_seen"]) == (curve[-1][2], tokens[-1])


def test_without_clipping_nothing_is_clipped(tmp_path):
    result, _ = fit(toy(), tmp_path, clip=None)
    assert result.figures["clipped_share"] == 0 and result.figures["gradient_norm_max"] > 0


def test_different_steps_and_seeds_give_different_random_numbers():
    numbers = set()
    for seed, step in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        loop.seed_everything(seed, step)
        numbers.add(torch.rand(()).item())
    assert len(numbers) == 4


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 9])
def test_micro_batches_add_up_to_the_batch(cap):
    hardware = Hardware(torch.device("cpu"), "fp32", 1, False, cap, "cpu")
    batch = rows().batch(np.arange(4))
    gradients = {}
    for name, machine in (("whole", CPU), ("parts", hardware)):
        model = toy(dropout=0.0).double()
        optimizer = Optimizer(model, RECIPE, machine)
        loss, _, statistics = loop.forward_backward(model, batch, optimizer, machine)
        gradients[name] = [loss, *(p.grad for p in model.parameters())]
        assert statistics[""]["tokens"] == batch.lengths.sum()
    # The auxiliary loss is a mean over rows, so micro-batches are weighted by their number of rows.
    for expected, found in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(expected, found, rtol=0, atol=1e-12)


def test_statistics_update_the_buffer_once_per_step(tmp_path):
    model = toy()
    result, _ = fit(model, tmp_path)
    assert model.seen == result.state.curve[-1][3]


class Recall(nn.Module):
    """A model whose memory is the sum of the tokens read since the document began, initially zero."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.read: list[torch.Tensor] = []

    def forward(self, batch: Batch, memory=None) -> Output:
        before = torch.zeros(batch.size) if memory is None else memory["sum"]
        total = before + (batch.tokens * (batch.targets != -100)).sum(1)
        if self.training:
            self.read.append(total)
        logits = self.scale * torch.zeros(*batch.tokens.shape, 50)
        return Output(logits, memory={"sum": total})


@pytest.mark.parametrize("cap", [None, 1])
def test_memory_is_passed_from_step_to_step_and_reset_at_documents(tmp_path, cap):
    spec = TaskSpec("stream", "1", "language_modeling", "causal", classes=50, train_length=9, vocabulary_size=50)
    documents = [list(range(1, 10)), list(range(20, 27)), list(range(30, 34)), list(range(40, 49))]
    table = {"tokens": documents, "length": [len(d) for d in documents]}
    stream = Rows(datasets.Dataset.from_dict(table), spec)
    model = Recall()
    hardware = Hardware(torch.device("cpu"), "fp32", 1, False, cap, "cpu")
    recipe = config(order="stream", window=3, batch_size=2, steps=9, evaluate_every=9)
    loop.train(
        model, {"train": stream, "validation": stream}, spec, recipe, hardware, Checkpoints(tmp_path, 9e9), print
    )
    batches = sampling.batches_of(stream, recipe.train, recipe.seed)
    running = torch.zeros(2)
    sums = [torch.cat(model.read[2 * i : 2 * i + 2]) for i in range(9)] if cap else model.read
    for step in range(9):
        batch = batches(step)
        running = torch.where(batch.extra["reset"], 0, running) + (batch.tokens * (batch.targets != -100)).sum(1)
        torch.testing.assert_close(sums[step], running)


def test_best_weights_are_saved_and_can_be_loaded(tmp_path):
    model = toy()
    result, logged = fit(model, tmp_path, steps=40, lr=0.05)
    losses = {step: values["validation_loss"] for step, values in logged}
    assert result.state.best_step == min(losses, key=lambda step: (losses[step], step))
    last = weights(model)
    Checkpoints(tmp_path, 1).load_best(model)
    # The kernels of some processors round differently if the weights begin at another address.
    assert evaluate(model, rows(16, 1), SPEC, CPU, 5, "test").loss == pytest.approx(result.state.best_value, rel=1e-6)
    assert result.state.best_step == 40 or not equal(last, weights(model))


@pytest.mark.parametrize(("select_by", "best"), [("loss", 4), ("metric", 2)])
def test_the_lowest_loss_selects_the_weights_unless_the_task_requires_its_metric(
    tmp_path, monkeypatch, select_by, best
):
    """The score has its maximum at step 2, the loss its minimum at steps 4 and 6, of which the first is kept."""
    found = iter([(0.9, 1.5), (0.5, 1.0), (0.7, 1.0), (0.8, 1.2)])

    def evaluated(*arguments, **options):
        score, loss = next(found)
        return replace(evaluate(*arguments, **options), score=score, loss=loss)

    monkeypatch.setattr(loop, "evaluate", evaluated)
    spec = replace(SPEC, select_by=select_by)
    options = config(steps=8, evaluate_every=2)
    data = {"train": rows(16, 0), "validation": rows(16, 1)}
    result = loop.train(toy(), data, spec, options, CPU, Checkpoints(tmp_path, 9e9), lambda *_: None)
    assert (result.state.best_step, result.state.best_value) == (best, 1.0 if select_by == "loss" else 0.9)
    assert result.figures["selected_by"] == ("loss" if select_by == "loss" else "accuracy")
    assert result.figures["best_step"] == best


def test_loss_that_is_not_finite_ends_the_run(tmp_path):
    with pytest.raises(Diverged, match="step"):
        fit(toy(), tmp_path, lr=1e30, clip=None)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_validation_loss_that_is_not_finite_ends_the_run(tmp_path, monkeypatch, loss):
    monkeypatch.setattr(
        loop, "evaluate", lambda *arguments, **options: replace(evaluate(*arguments, **options), loss=loss)
    )
    with pytest.raises(Diverged, match="the validation loss is"):
        fit(toy(), tmp_path)


def test_damaged_checkpoint_is_reported_and_training_starts_again(tmp_path, capsys):
    expected, _ = fit(toy(), tmp_path)
    content = (tmp_path / LAST).read_bytes()
    (tmp_path / LAST).write_bytes(content[: len(content) // 2])
    found, _ = fit(toy(), tmp_path)
    assert "cannot be used" in capsys.readouterr().err
    assert found.state.curve == expected.state.curve


def test_error_for_an_unwritable_checkpoint_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="LRA_BENCH_CACHE"):
        fit(toy(), tmp_path / "file" / "folder", every_seconds=0)


def test_evaluation_covers_every_row_once_and_keeps_the_order_of_rows():
    model, data = toy(), rows(23, 4)
    one_batch = evaluate(model, data, SPEC, CPU, 23, "test")
    parts = evaluate(model, data, SPEC, CPU, 5, "test")
    np.testing.assert_array_equal(one_batch.prediction, parts.prediction)
    np.testing.assert_allclose(one_batch.row_loss, parts.row_loss, rtol=1e-6)
    single = [model.eval()(data.batch([i])).logits.argmax().item() for i in range(23)]
    np.testing.assert_array_equal(parts.prediction, single)
    assert parts.score == np.mean(parts.prediction == parts.target)
    assert not model.training


def test_loss_is_the_mean_over_scored_targets():
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    targets = torch.tensor([[1, -100, 2], [3, -100, -100]])
    batch = Batch(torch.tensor([3, 1]), targets, tokens=torch.zeros(2, 3, dtype=torch.long))
    picked = [logits[0, 0].log_softmax(0)[1], logits[0, 2].log_softmax(0)[2], logits[1, 0].log_softmax(0)[3]]
    expected = -sum(picked) / 3
    torch.testing.assert_close(objective(Output(logits), batch), expected)


def test_parameter_groups_follow_defaults_and_optimizer_hints():
    class Hinted(nn.Module):
        optimizer_hints = {  # noqa: RUF012
            "slow": {"lr": 1e-5, "weight_decay": 0.0},
            "capped": {"max_lr": 1e-4},
            "free": {"max_lr": 1e-2, "weight_decay": 0.0},
            "fast": {"lr_factor": 2.0},
            "both": {"lr_factor": 4.0, "max_lr": 3e-3},
        }

        def __init__(self):
            super().__init__()
            self.slow, self.capped, self.free, self.fast, self.both = (nn.Parameter(torch.ones(2, 2)) for _ in range(5))
            self.linear = nn.Linear(2, 2)
            self.table = nn.Embedding(3, 2)

    model = Hinted()
    groups = {(g["lr"], g["weight_decay"]): {id(p) for p in g["params"]} for g in parameter_groups(model, 1e-3, 0.1)}
    assert groups == {
        (1e-5, 0.0): {id(model.slow)},
        (1e-4, 0.1): {id(model.capped)},
        (1e-3, 0.1): {id(model.linear.weight)},
        (1e-3, 0.0): {id(model.free), id(model.linear.bias), id(model.table.weight)},
        (2e-3, 0.1): {id(model.fast)},
        (3e-3, 0.1): {id(model.both)},
    }
    rates = {id(p): g["lr"] for g in parameter_groups(model, 1e-3, 0.1, state_lr=3e-4) for p in g["params"]}
    assert [rates[id(p)] for p in (model.slow, model.capped, model.free, model.both)] == [1e-5, 3e-4, 3e-4, 3e-4]
    assert rates[id(model.linear.weight)] == 1e-3
    lower = {id(p): g["lr"] for g in parameter_groups(model, 1e-4, 0.1) for p in g["params"]}
    assert [lower[id(p)] for p in (model.fast, model.both)] == [2e-4, 4e-4]


class WithHints(nn.Module):
    optimizer_hints = {  # noqa: RUF012
        "slow": {"lr": 1e-5, "weight_decay": 0.0},
        "capped": {"max_lr": 1e-4},
        "free": {"max_lr": 1e-2},
        "fast": {"lr_factor": 2.0},
        "undecayed": {"weight_decay": 0.0},
    }

    def __init__(self):
        super().__init__()
        for name in self.optimizer_hints:
            setattr(self, name, nn.Parameter(torch.ones(2, 2)))
        self.linear = nn.Linear(2, 2)


@pytest.mark.parametrize("lr", [3e-4, 1e-3, 9e-2])
def test_rates_of_hints_keep_their_ratio_to_a_searched_rate(lr):
    model, names = WithHints(), (*WithHints.optimizer_hints, "linear.weight")
    own, searched = (
        {name: {id(p): g["lr"] for g in groups for p in g["params"]}[id(model.get_parameter(name))] for name in names}
        for groups in (parameter_groups(model, 1e-3, 0.1), parameter_groups(model, lr, 0.1, protocol_lr=1e-3))
    )
    for name in names:
        assert searched[name] / lr == pytest.approx(own[name] / 1e-3, rel=1e-12)
    assert searched["linear.weight"] == searched["free"] == searched["undecayed"] == lr
    hints = hinted_rates(model, lr, protocol_lr=1e-3)
    assert set(hints) == {"slow", "capped", "free", "fast"}
    assert {name: pytest.approx(hint["ratio"]) for name, hint in hints.items()} == {
        "slow": 0.01, "capped": 0.1, "free": 1.0, "fast": 2.0
    }  # fmt: skip
    assert {name for name, hint in hints.items() if hint["absolute"]} == {"slow", "capped", "free"}
    assert hints["capped"]["hint"] == "max_lr=0.0001"
    assert hinted_rates(model, lr, state_lr=5e-4, protocol_lr=1e-3)["capped"]["hint"] == "max_lr=0.0005"


def test_a_checkpoint_of_another_learning_rate_is_not_used(tmp_path, capsys):
    machine, model = resolve(HardwareOptions(device="cpu")), WithHints()
    checkpoints = Checkpoints(tmp_path, 0)
    checkpoints.save(State(step=7), model, Optimizer(model, RECIPE, machine))
    assert checkpoints.resume(model, Optimizer(model, RECIPE, machine)).step == 7
    other = Optimizer(model, replace(RECIPE, lr=2 * RECIPE.lr), machine, RECIPE.lr)
    assert checkpoints.resume(model, other).step == 0
    assert "another learning rate" in capsys.readouterr().err
