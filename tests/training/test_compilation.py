"""torch.compile: what it did is told, what it cannot do runs as it is, and its seconds are not those of training."""

import math

import pytest
import torch
from torch import nn

from lra_bench.contracts import Output
from lra_bench.profiling.bench import Bench
from lra_bench.runtime.hardware import Hardware
from lra_bench.training import loop
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.compilation import Compilation
from tests.support.command import TINY, Folder
from tests.training.test_loop import CPU, RECIPE, SPEC, Toy, config, equal, fit, rows, toy, weights

COMPILED = Hardware(torch.device("cpu"), "fp32", 1, True, None, "cpu-compiled")


class Doubling(nn.Module):
    """Twice what goes in; a layer that asks for a value in between breaks the graph."""

    def __init__(self, breaks=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.breaks = breaks

    def forward(self, x):
        y = x * self.weight
        if self.breaks and y.sum().item() > 1e9:
            return y
        return y * 2


def never(graph, inputs):
    raise ValueError("this backend\nnever works")


@pytest.fixture
def backend(monkeypatch):
    """Have compilations use another backend than the slow one."""

    def use(name):
        monkeypatch.setattr(Compilation.__init__, "__defaults__", (name,))

    return use


def test_nothing_asked_for_is_nothing_done():
    model = Doubling()
    compilation = Compilation(model, False)
    assert compilation.run is model and compilation.report() is None and compilation.taken_seconds() == 0
    with pytest.raises(ValueError, match="own"):
        compilation.guarded(lambda: (_ for _ in ()).throw(ValueError("own")), pytest.fail)


def test_one_graph_is_one_graph():
    compilation = Compilation(Doubling(), True, "eager")
    assert torch.equal(compilation.run(torch.ones(3)), torch.full((3,), 2.0))
    report = compilation.report()
    assert report["used"] and report["graphs"] == 1 and report["reason"] == ""
    assert report["graph_breaks"] == report["uncompiled_functions"] == report["cache_hits"] == 0
    assert 0 < report["seconds"] == compilation.taken_seconds()
    compilation.run(torch.ones(3))
    assert compilation.report() == report and compilation.taken_seconds() == 0
    compilation.begin()
    assert compilation.report()["seconds"] == compilation.report()["graphs"] == 0


def test_a_break_is_counted_and_why_it_is_said(capfd):
    compilation = Compilation(Doubling(breaks=True), True, "eager")
    assert torch.equal(compilation.run(torch.ones(3)), torch.full((3,), 2.0))
    report = compilation.report()
    assert report["used"] and report["graphs"] == 2 and report["graph_breaks"] == 1
    assert "item" in report["reason"]
    assert capfd.readouterr().err == ""


def test_where_compiling_fails_the_model_runs_as_it_is(capfd):
    compilation = Compilation(Doubling(), True, never)
    undone = []
    done = compilation.guarded(lambda: compilation.run(torch.ones(3)), lambda: undone.append(True))
    assert torch.equal(done, torch.full((3,), 2.0)) and undone == [True]
    assert not compilation.report()["used"]
    assert "this backend" in compilation.report()["reason"]
    assert capfd.readouterr().err.count("\n") == 1
    compilation.guarded(lambda: compilation.run(torch.ones(3)), pytest.fail)


def test_the_models_own_fault_stays_its_own():
    class Faulty(nn.Module):
        def forward(self, x):
            raise LookupError("of its own")

    compilation = Compilation(Faulty(), True, "eager")
    with pytest.raises(LookupError, match="of its own"):
        compilation.guarded(lambda: compilation.run(torch.ones(3)), lambda: None)


def test_a_want_of_memory_is_no_fault_of_compiling():
    compilation = Compilation(Doubling(), True, "eager")
    with pytest.raises(MemoryError):
        compilation.guarded(lambda: (_ for _ in ()).throw(MemoryError()), pytest.fail)


@pytest.mark.parametrize("name", ["eager", never], ids=["compiled", "failing"])
def test_training_is_the_same_whatever_became_of_compiling(tmp_path, backend, name):
    backend(name)
    plain, compiled = toy(), toy()
    expected, _ = fit(plain, tmp_path / "plain")
    found, _ = fit(compiled, tmp_path / "compiled", hardware=COMPILED)
    assert equal(weights(plain), weights(compiled))
    assert found.state.curve == expected.state.curve
    assert expected.figures["compile"] is None and expected.figures["compile_seconds"] is None
    assert found.figures["compile"]["used"] == (name == "eager")
    assert found.figures["compile_seconds"] == pytest.approx(found.figures["compile"]["seconds"])


def test_a_failure_in_the_backward_pass_is_a_failure_of_compiling(tmp_path, backend):
    """Compiling the backward pass may be put off until it runs; gradients gathered by then count once."""

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


def test_seconds_of_compiling_are_not_those_of_training(tmp_path, backend, monkeypatch):
    backend("eager")
    compiled = Compilation.taken_seconds
    monkeypatch.setattr(Compilation, "taken_seconds", lambda self: (compiled(self), 100.0)[1])
    found, _ = fit(toy(), tmp_path, hardware=COMPILED)
    # Once in the window of the first steps, and once in each that an evaluation or a checkpoint ends.
    windows = found.figures["compile_seconds"] / 100
    assert windows == int(windows) > 0
    assert found.figures["train_seconds"] == pytest.approx(-100 * windows, abs=99)


def test_a_resumed_run_adds_up_what_compiling_took(tmp_path, backend):
    backend("eager")
    with pytest.raises(KeyboardInterrupt):
        fit(toy(), tmp_path, stop_after=8, every_seconds=0, hardware=COMPILED)
    found, _ = fit(toy(), tmp_path, every_seconds=0, hardware=COMPILED)
    assert found.figures["compile_seconds"] > found.figures["compile"]["seconds"] > 0


@pytest.mark.parametrize("name", ["eager", never], ids=["compiled", "failing"])
@pytest.mark.parametrize("mode", ["inference", "train"])
def test_a_timed_step_tells_what_was_compiled(backend, name, mode):
    backend(name)
    model = toy()
    batch = loop.training_batches(rows(), RECIPE, 0)(0)
    bench = Bench(model, Compilation(model, True), batch, RECIPE, COMPILED)
    step = bench.step(mode)
    step()
    step()
    report = bench.compilation.report()
    assert report["used"] == (name == "eager") and report["graphs"] == (name == "eager")
    assert bench.step(mode) and bench.compilation.report()["graphs"] == 0


def test_a_model_with_a_break_trains_alike(tmp_path, backend):
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
@pytest.mark.parametrize("model", ["transformer", "performer", "local"])
def test_a_compiled_cell_says_so_in_its_record(tmp_path, model):
    folder = Folder(tmp_path)
    options = [option for option in TINY if "speed_lengths" not in option]
    folder.run("bench", *options, f"model={model}", "measure.speed_lengths=[64]", "hardware.compile=true", timeout=1800)
    record = folder.record()
    assert record["status"] == "ok" and "compiled" in record["key"]["hardware"]
    told = [record["training"]["compile"], *(point["compile"] for point in record["speed"])]
    assert [each["used"] for each in told] == [True] * 3, told
    assert all(each["seconds"] > 0 for each in told)
    assert record["training"]["compile_seconds"] == pytest.approx(told[0]["seconds"])
