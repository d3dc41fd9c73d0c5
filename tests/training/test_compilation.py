"""torch.compile: the report of compiled graphs, the fallback to eager mode, and the separate time of compilation."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from lra_bench.contracts import Output
from lra_bench.profiling.bench import Bench
from lra_bench.runtime.hardware import Hardware
from lra_bench.training import loop, sampling
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.compilation import Compilation
from tests.support.command import TINY, Folder
from tests.training.test_loop import CPU, RECIPE, SPEC, Toy, config, equal, fit, rows, toy, weights

COMPILED = Hardware(torch.device("cpu"), "fp32", 1, True, None, "cpu-compiled")


class Doubling(nn.Module):
    """A layer that doubles its input; with ``breaks`` it reads a value on the host, which breaks the graph."""

    def __init__(self, breaks=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.breaks = breaks

    def forward(self, x):
        y = x * self.weight
        if self.breaks and y.sum().item() > 1e9:
            return y
        return y * 2


def failing(graph, inputs):
    raise ValueError("this backend\nnever works")


@pytest.fixture
def backend(monkeypatch):
    """Return a function that sets the default backend of ``Compilation``; inductor is slow."""

    def use(name):
        monkeypatch.setattr(Compilation.__init__, "__defaults__", (name,))

    return use


def test_without_a_request_nothing_is_compiled():
    model = Doubling()
    compilation = Compilation(model, False)
    assert compilation.run is model and compilation.report() is None and compilation.pop_seconds() == 0
    with pytest.raises(ValueError, match="model error"):
        compilation.guarded(lambda: (_ for _ in ()).throw(ValueError("model error")), pytest.fail)


def test_model_without_breaks_is_a_single_graph():
    compilation = Compilation(Doubling(), True, "eager")
    assert torch.equal(compilation.run(torch.ones(3)), torch.full((3,), 2.0))
    report = compilation.report()
    assert report["used"] and report["graphs"] == 1 and report["reason"] == ""
    assert report["graph_breaks"] == report["uncompiled_functions"] == report["cache_hits"] == 0
    assert 0 < report["seconds"] == compilation.pop_seconds()
    compilation.run(torch.ones(3))
    assert compilation.report() == report and compilation.pop_seconds() == 0
    compilation.begin()
    assert compilation.report()["seconds"] == compilation.report()["graphs"] == 0


def test_graph_break_is_counted_with_its_reason(capfd):
    compilation = Compilation(Doubling(breaks=True), True, "eager")
    assert torch.equal(compilation.run(torch.ones(3)), torch.full((3,), 2.0))
    report = compilation.report()
    assert report["used"] and report["graphs"] == 2 and report["graph_breaks"] == 1
    assert "item" in report["reason"]
    assert capfd.readouterr().err == ""


def test_model_runs_in_eager_mode_if_compilation_fails(capfd):
    compilation = Compilation(Doubling(), True, failing)
    undone = []
    result = compilation.guarded(lambda: compilation.run(torch.ones(3)), lambda: undone.append(True))
    assert torch.equal(result, torch.full((3,), 2.0)) and undone == [True]
    assert not compilation.report()["used"]
    assert "this backend" in compilation.report()["reason"]
    assert capfd.readouterr().err.count("\n") == 1
    compilation.guarded(lambda: compilation.run(torch.ones(3)), pytest.fail)


def test_errors_of_the_model_are_raised():
    class Faulty(nn.Module):
        def forward(self, x):
            raise LookupError("model error")

    compilation = Compilation(Faulty(), True, "eager")
    with pytest.raises(LookupError, match="model error"):
        compilation.guarded(lambda: compilation.run(torch.ones(3)), lambda: None)


@pytest.mark.parametrize("message", ["cuFFT error: CUFFT_ALLOC_FAILED", "CUDA error: unspecified launch failure"])
def test_out_of_memory_errors_and_lost_devices_are_raised_without_a_retry(message):
    compilation = Compilation(Doubling(), True, "eager")

    def fail(error: Exception) -> None:
        raise error

    for error in (MemoryError(), RuntimeError(message)):
        with pytest.raises(type(error)):
            compilation.guarded(partial(fail, error), pytest.fail)


@pytest.mark.parametrize("name", ["eager", failing], ids=["compiled", "failing"])
def test_training_is_the_same_with_and_without_successful_compilation(tmp_path, backend, name):
    backend(name)
    plain, compiled = toy(), toy()
    expected, _ = fit(plain, tmp_path / "plain")
    found, _ = fit(compiled, tmp_path / "compiled", hardware=COMPILED)
    assert equal(weights(plain), weights(compiled))
    assert found.state.curve == expected.state.curve
    assert expected.figures["compile"] is None and expected.figures["compile_seconds"] is None
    assert found.figures["compile"]["used"] == (name == "eager")
    assert found.figures["compile_seconds"] == pytest.approx(found.figures["compile"]["seconds"])


def test_failure_in_the_backward_pass_falls_back_to_eager_mode(tmp_path, backend):
    """The backward pass may be compiled when it runs; gradients accumulated before the failure must count once."""

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise RuntimeError("the backward pass cannot be compiled")

    def late(graph, inputs):
        def run(*arguments):
            return [Late.apply(out) if out.requires_grad else out for out in graph(*arguments)]

        return run

    backend(late)
    plain, compiled = toy(), toy()
    fit(plain, tmp_path / "plain")
    found, _ = fit(compiled, tmp_path / "compiled", hardware=COMPILED)
    assert equal(weights(plain), weights(compiled))
    assert "backward pass" in found.figures["compile"]["reason"]


def test_seconds_of_compilation_are_not_part_of_training_seconds(tmp_path, backend, monkeypatch):
    backend("eager")
    compiled = Compilation.pop_seconds
    monkeypatch.setattr(Compilation, "pop_seconds", lambda self: (compiled(self), 100.0)[1])
    found, _ = fit(toy(), tmp_path, hardware=COMPILED)
    # One window for the warm-up steps, and one before each evaluation or checkpoint.
    windows = found.figures["compile_seconds"] / 100
    assert windows == int(windows) > 0
    assert found.figures["train_seconds"] == pytest.approx(-100 * windows, abs=99)


def test_resumed_run_sums_seconds_of_compilation(tmp_path, backend):
    backend("eager")
    with pytest.raises(KeyboardInterrupt):
        fit(toy(), tmp_path, stop_after=8, every_seconds=0, hardware=COMPILED)
    found, _ = fit(toy(), tmp_path, every_seconds=0, hardware=COMPILED)
    assert found.figures["compile_seconds"] > found.figures["compile"]["seconds"] > 0


@pytest.mark.parametrize("name", ["eager", failing], ids=["compiled", "failing"])
@pytest.mark.parametrize("mode", ["inference", "train"])
def test_timed_step_reports_compilation(backend, name, mode):
    backend(name)
    model = toy()
    batch = sampling.batches_of(rows(), RECIPE, 0)(0)
    bench = Bench(model, Compilation(model, True), batch, RECIPE, COMPILED)
    step = bench.step(mode)
    step()
    step()
    report = bench.compilation.report()
    assert report["used"] == (name == "eager") and report["graphs"] == (name == "eager")
    assert bench.step(mode) and bench.compilation.report()["graphs"] == 0


def test_model_with_a_graph_break_trains_as_in_eager_mode(tmp_path, backend):
    class Breaking(Toy):
        def forward(self, batch, memory=None):
            if self.table.weight.sum().item() > 1e9:
                return Output(self.table.weight, {}, None, {})
            return super().forward(batch)

    backend("eager")
    torch.manual_seed(0)
    plain = Breaking()
    torch.manual_seed(0)
    compiled = Breaking()
    parts = {"train": rows(), "validation": rows(16, 1)}
    for model, hardware in ((plain, CPU), (compiled, COMPILED)):
        folder = tmp_path / hardware.slug
        found = loop.train(model, parts, SPEC, config(), hardware, Checkpoints(folder, math.inf), lambda *_: None)
    assert equal(weights(plain), weights(compiled))
    assert found.figures["compile"]["graph_breaks"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["bag_of_tokens", *(pytest.param(name, marks=pytest.mark.long) for name in ("performer", "transformer"))]
)
def test_record_of_a_compiled_cell_reports_compilation(tmp_path, model):
    folder = Folder(tmp_path)
    options = [option for option in TINY if "speed_lengths" not in option]
    folder.run("bench", *options, f"model={model}", "measure.speed_lengths=[64]", "hardware.compile=true", timeout=1800)
    record = folder.record()
    assert record["status"] == "ok" and "compiled" in record["key"]["hardware"]
    reports = [record["training"]["compile"], *(point["compile"] for point in record["speed"])]
    assert [each["used"] for each in reports] == [True] * 3, reports
    assert all(each["seconds"] > 0 for each in reports)
    assert record["training"]["compile_seconds"] == pytest.approx(reports[0]["seconds"])
