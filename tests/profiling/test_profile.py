"""The step benchmark of toy networks: results of workers, handling of failed workers, and skipped lengths."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

from lra_bench.config import compose as configuration
from lra_bench.config.groups import option_files
from lra_bench.config.objects import build_task
from lra_bench.config.schema import CellConfig, Measure, Train
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import TaskSpec
from lra_bench.profiling import bench, energy, scaling, timing, worker
from lra_bench.profiling import profile as profiling
from lra_bench.profiling.profile import profile
from lra_bench.profiling.speed_point import unmeasured
from lra_bench.profiling.steps import inference_step, train_step
from lra_bench.profiling.synthetic import spec_at, synthetic_batch, tokens_in
from lra_bench.profiling.worker_pool import JobWorkers, run_worker
from lra_bench.records.sections import Energy, Flops, SpeedPoint
from lra_bench.runtime.hardware import Hardware, HardwareOptions, resolve
from lra_bench.runtime.memory import KEEP_FREED_MEMORY, RETURN_FREED_MEMORY
from lra_bench.runtime.subprocesses import environment
from lra_bench.training.optimizer import Optimizer
from tests.support import toy_networks as toy

CPU = torch.device("cpu")


def config(network: str = "LinearAttention", lengths: list[int] | None = None, **options: Any) -> CellConfig:
    node = {"_target_": f"tests.support.toy_networks.{network}", **options}
    return CellConfig(
        model={"label": "toy", "network": node},
        train=Train(steps=100, schedule="constant", warmup_steps=0),
        measure=Measure(speed_lengths=lengths, speed_batch_size=2, flops=False, energy=False),
        hardware=HardwareOptions(device="cpu", precision="fp32", threads=1),
    )


def hardware() -> Hardware:
    return resolve(config().hardware)


def job(network: str = "LinearAttention", length: int = 32, spec: TaskSpec | None = None, **options: Any) -> dict:
    return {
        "config": as_dict(config(network, **options)),
        "spec": dataclasses.asdict(spec or toy.spec()),
        "length": length,
        "batch_size": 2,
        "modes": ["inference", "train"],
        "limit_seconds": 30.0,
        "flops": False,
        "step_flops": False,
        "memory_only": False,
        "energy": False,
    }


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch):
    """Shorten the warm-up and the timing window, so that jobs are fast; the number of threads is restored."""
    monkeypatch.setattr(timing, "SECONDS", 0.01)
    monkeypatch.setattr(timing, "WARM_UP_STEPS", 2)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# ---- synthetic batches


@pytest.mark.parametrize("kind", ["classification", "matching", "tagging", "language_modeling"])
def test_synthetic_batch_has_the_shape_of_its_task(kind: str) -> None:
    spec = toy.spec(kind)
    batch = synthetic_batch(spec, 3, 50, CPU)
    assert batch.tokens is not None and batch.values is None
    assert batch.tokens.shape == ((3, 2, 50) if kind == "matching" else (3, 50))
    assert batch.targets.shape == ((3, 50) if spec.per_token else (3,))
    assert batch.full and tokens_in(batch) == batch.tokens.numel()
    assert set(batch.tokens.unique().tolist()) == set(range(1, 12)), "tokens must cover the vocabulary except id 0"
    assert batch.targets.min() >= 0 and batch.targets.max() < spec.classes
    again, other = synthetic_batch(spec, 3, 50, CPU), synthetic_batch(spec, 3, 50, CPU, seed=1)
    assert torch.equal(batch.tokens, again.inputs) and not torch.equal(batch.tokens, other.inputs)


def test_synthetic_batch_of_values_is_standard_normal() -> None:
    batch = synthetic_batch(toy.spec(channels=4), 3, 500, CPU)
    assert batch.tokens is None and batch.values is not None
    assert batch.values.shape == (3, 500, 4)
    assert batch.values.std() == pytest.approx(1, abs=0.1)


def test_synthetic_batch_supports_a_vocabulary_of_one_token() -> None:
    assert synthetic_batch(toy.spec(vocabulary_size=1), 1, 4, CPU).inputs.tolist() == [[0] * 4]


@pytest.mark.parametrize(("length", "grid"), [(64, (4, 16)), (256, (16, 16)), (128, None)])
def test_grid_is_kept_or_square_or_none_at_another_length(length: int, grid: tuple[int, int] | None) -> None:
    spec = spec_at(toy.spec(grid=(4, 16)), length)
    assert (spec.train_length, spec.grid) == (length, grid)


# ---- results of a worker


@pytest.mark.parametrize("kind", ["classification", "matching", "tagging", "language_modeling"])
def test_both_modes_are_measured_for_every_kind_of_task(short_windows: None, kind: str) -> None:
    found = [result["speed"] for result in worker.results(job(spec=toy.spec(kind)))]
    assert [entry["mode"] for entry in found] == ["inference", "train"]
    for entry in found:
        assert set(entry) == set(get_type_hints(SpeedPoint))
        assert (entry["status"], entry["reason"], entry["length"], entry["batch_size"]) == ("ok", "", 32, 2)
        assert entry["n"] >= timing.STEPS and not entry["short_run"]
        tokens = 2 * 32 * (2 if kind == "matching" else 1)
        assert entry["tokens_per_second"] == pytest.approx(tokens / entry["median_seconds"])
        assert entry["peak_allocated_bytes"] is None and entry["peak_reserved_bytes"] is None
    memory_results = [result["memory"] for result in worker.results({**job(spec=toy.spec(kind)), "memory_only": True})]
    assert [mode for mode, _ in memory_results] == ["inference", "train"]
    assert {(entry["batch_policy"], entry["attention_backend"]) for entry in found} == {("fixed", None)}
    # For inference the weights; for training also gradients, two moments, and a step counter per tensor.
    weights = sum(parameter.numel() for parameter in bench.model_at(config(), toy.spec(kind), 32).parameters())
    tensors = len(list(bench.model_at(config(), toy.spec(kind), 32).parameters()))
    assert [entry["static_bytes"] for entry in found] == [4 * weights, 4 * (4 * weights + tensors)]
    peaks = [memory["peak_resident_growth_bytes"] for _, memory in memory_results]
    assert None not in peaks or sys.platform != "linux"


@pytest.mark.parametrize(
    ("how", "training_only", "statuses", "reason"),
    [
        ("memory", False, ["out_of_memory", "out_of_memory"], "allocate"),
        ("memory", True, ["ok", "out_of_memory"], "allocate"),
        ("error", False, ["failed", "failed"], "ValueError: shapes do not match"),
        ("build", False, ["incompatible", "incompatible"], "fixed to 31 positions"),
        ("refuses", False, ["incompatible", "incompatible"], "takes at most 31"),
        ("slow", True, ["ok", "timeout"], "exceed the limit of 2 s"),
    ],
)
def test_failures_have_status_and_reason(
    short_windows: None, how: str, training_only: bool, statuses: list[str], reason: str
) -> None:
    request = {**job("Failing", how=how, limit=32, training_only=training_only), "limit_seconds": 2.0}
    found = [result["speed"] for result in worker.results(request)]
    assert [entry["status"] for entry in found] == statuses
    for entry in found:
        if entry["status"] != "ok":
            assert reason in entry["reason"] and "\n" not in entry["reason"]
            assert entry["median_seconds"] is None and entry["n"] == 0


def test_job_can_request_flops_and_energy(short_windows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "counter_of", lambda device: "no counter")
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    *found, steps, counted = worker.results({**job(length=32), "flops": True, "step_flops": True, "energy": True})
    found.append(counted)
    assert [next(iter(result)) for result in found] == ["speed", "speed", "energy", "flops"]
    assert found[3]["flops"]["ceiling_per_second"] == 1e9
    # The FLOPs of the head are per row, all others are per token.
    head, per_token = 2 * 8 * 5, found[3]["flops"]["per_token_forward"] - 2 * 8 * 5 / 64
    assert steps["step_flops"]["inference"] == pytest.approx(32 * per_token + head)
    assert steps["step_flops"]["train"] == 3 * steps["step_flops"]["inference"]
    assert set(found[2]["energy"]) == set(get_type_hints(Energy))
    assert found[2]["energy"] == {"joules_per_step": None, "route": "none: no counter"}
    assert set(found[3]["flops"]) == set(get_type_hints(Flops))
    assert found[3]["flops"]["length"] == 64, "FLOPs must be counted at the training length"
    assert found[3]["flops"]["per_token_training"] == 3 * found[3]["flops"]["per_token_forward"]


def test_flops_are_counted_at_the_requested_length(short_windows: None, monkeypatch) -> None:
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    request = {**job(length=32), "modes": [], "flops": True}
    for requested, length in ((None, toy.spec().train_length), (16, 16)):
        request["config"]["measure"]["flops_length"] = requested
        (found,) = (result["flops"] for result in worker.results(request))
        assert found["length"] == length and found["per_token_forward"] > 0


def test_flops_of_a_model_that_cannot_be_built_report_the_reason(
    short_windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    *_, last = worker.results({**job("Failing", how="build", limit=40), "flops": True})
    assert last["flops"]["per_token_forward"] is None
    assert "fixed to 39 positions" in last["flops"]["route"]


FAST_MODELS = {"transformer", "linear", "local", "reformer", "sinkhorn", "luna", "nystrom", "fnet", "gmlp"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "model",
    [
        name if name in FAST_MODELS else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(option_files("model"))
    ],
)
def test_every_model_can_be_measured(short_windows: None, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    with configuration.hydra_context():
        composed = configuration.compose(
            [f"model={model}", "protocol=smoke", "hardware=cpu", "hardware.threads=1"]
        ).config
    spec = build_task(composed).spec
    length = 2 * spec.train_length
    request = {"config": as_dict(composed), "spec": dataclasses.asdict(spec), "length": length, "flops": True}
    found = list(worker.results({**job(), **request}))
    assert [(entry["speed"]["status"], entry["speed"]["length"]) for entry in found[:2]] == [("ok", length)] * 2
    assert found[2]["flops"]["per_token_training"] > found[2]["flops"]["per_token_forward"] > 0


def test_training_step_updates_parameters_and_inference_step_does_not() -> None:
    spec = toy.spec()
    model = bench.model_at(config(), spec, 32)
    batch = synthetic_batch(spec, 2, 32, CPU)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    graphs = []
    model.register_forward_hook(lambda *call: graphs.append(call[2].logits.requires_grad))
    inference_step(model, batch, hardware(), model)()
    assert graphs == [False], "inference must not build an autograd graph"
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())
    step = train_step(model, batch, Optimizer(model, config().train, hardware()), hardware(), model)
    step()
    assert model.training
    assert not all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters()), "gradients must be cleared between steps"


def test_model_is_built_for_the_measured_length() -> None:
    built = bench.model_at(config(), toy.spec(length=64), 4096)
    assert built.task.train_length == 4096


# ---- energy


def test_energy_is_the_counter_difference_divided_by_steps() -> None:
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        time.sleep(0.001)

    found = energy.measure_energy(step, CPU, energy.Counter("joules", lambda: 5 + steps * 2.5), seconds=0.05)
    assert found.joules_per_step == pytest.approx(2.5)
    assert found.route.startswith("joules over 0.") and f"{steps} steps" in found.route
    assert energy.measure_energy(step, CPU, energy.Counter("stuck", lambda: 5), 0.01).joules_per_step is None


# ---- evaluation of worker results


class Workers:
    """Replacement for ``JobWorkers``: returns seconds per step by mode and length, or an exit status.

    ``jobs`` collects the timing jobs, ``memory_jobs`` lengths and modes of jobs that measure memory.
    """

    def __init__(self, seconds: Any, endings: dict[tuple[str, int], tuple[str, str]] | None = None) -> None:
        self.seconds, self.endings, self.jobs = seconds, endings or {}, []
        self.memory_jobs: list[tuple[int, list[str]]] = []

    def __call__(self, reused: bool) -> "Workers":
        return self

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, request: dict, timeout_seconds: float, variables: dict[str, str] | None = None
    ) -> tuple[list[dict], tuple[str, str]]:
        if request["memory_only"]:
            assert variables == RETURN_FREED_MEMORY
            self.memory_jobs.append((request["length"], request["modes"]))
            memory = {"peak_resident_growth_bytes": 1000 * request["length"], "activation_bytes": None}
            return [{"memory": [mode, memory]} for mode in request["modes"]], ("failed", "no more")
        assert variables == KEEP_FREED_MEMORY
        self.jobs.append(request)
        found = []
        for mode in request["modes"]:
            if ending := self.endings.get((mode, request["length"])):
                return found, ending
            entry = unmeasured(mode, request["length"], request["batch_size"], "ok", "")
            seconds = self.seconds(mode, request["length"])
            found.append({"speed": {**entry, "median_seconds": seconds, "p10_seconds": seconds}})
        if request["flops"]:
            found.append({"flops": {"length": request["length"], "ceiling_per_second": 1e9}})
        return found, ("failed", "ended without an answer")


def tried(workers: Workers) -> list[tuple[int, list[str]]]:
    """Return lengths and modes of the timing jobs."""
    return [(request["length"], request["modes"]) for request in workers.jobs]


def run_profile(workers: Workers, monkeypatch: pytest.MonkeyPatch, lengths: list[int], **options: Any) -> dict:
    monkeypatch.setattr(profiling, "JobWorkers", workers)
    return profile(config(lengths=lengths), toy.spec(), hardware(), **options)


def test_lengths_are_measured_in_increasing_order_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: length / 1e5)
    advances: list[int] = []

    @contextmanager
    def counting(total: int, *_: Any, **__: Any) -> Iterator[Callable[[int], None]]:
        assert total == 3
        yield advances.append

    monkeypatch.setattr(profiling, "bar", counting)
    found = run_profile(workers, monkeypatch, [4096, 1024, 2048])
    assert tried(workers) == [(length, ["inference", "train"]) for length in (1024, 2048, 4096)]
    assert workers.memory_jobs == tried(workers), "memory must be measured for all timed modes, in separate processes"
    assert {(entry["length"], entry["peak_resident_growth_bytes"]) for entry in found["speed"]} == {
        (length, 1000 * length) for length in (1024, 2048, 4096)
    }
    assert advances == [1, 1, 1]
    assert [(entry["mode"], entry["length"]) for entry in found["speed"]] == [
        (mode, length) for mode in ("inference", "train") for length in (1024, 2048, 4096)
    ]
    assert found["growth"]["train"]["time_exponent"] == pytest.approx(1)
    assert found["flops"] is None


def test_flops_are_counted_without_a_step_benchmark() -> None:
    cell = config(lengths=[])
    assert profiling.profile(cell, toy.spec(), hardware())["flops"] is None
    cell.measure.flops = True
    torch.manual_seed(0)
    found = profiling.profile(cell, toy.spec(), hardware())
    after = torch.rand(1)
    assert found["speed"] == [] and set(found["flops"]) == set(get_type_hints(Flops))
    assert found["flops"]["per_token_training"] == 3 * found["flops"]["per_token_forward"] > 0
    assert (found["flops"]["length"], found["flops"]["ceiling_per_second"]) == (toy.spec().train_length, None)
    torch.manual_seed(0)
    assert after == torch.rand(1)


def test_flops_are_counted_only_at_the_first_length(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3)
    monkeypatch.setattr(profiling, "JobWorkers", workers)
    options = config(lengths=[1024, 2048])
    options.measure.flops = True
    assert profile(options, toy.spec(), hardware())["flops"] == {"length": 1024, "ceiling_per_second": 1e9}
    assert [request["flops"] for request in workers.jobs] == [True, False]


def test_sections_missing_after_a_killed_process_report_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3, {("train", 1024): ("out_of_memory", "killed")})
    monkeypatch.setattr(profiling, "JobWorkers", workers)
    options = config(lengths=[1024])
    options.measure.flops = options.measure.energy = True
    found = profile(options, toy.spec(), hardware())
    assert found["flops"]["per_token_forward"] is None and "killed" in found["flops"]["route"]
    assert found["energy"]["joules_per_step"] is None and "killed" in found["energy"]["route"]
    assert set(found["flops"]) == set(get_type_hints(Flops)) and set(found["energy"]) == set(get_type_hints(Energy))


def test_lengths_and_batch_size_default_to_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3)
    monkeypatch.setattr(profiling, "JobWorkers", workers)
    options = config()
    options.measure.speed_batch_size = None
    profile(options, toy.spec(), hardware())
    assert [(request["length"], request["batch_size"]) for request in workers.jobs] == [
        (length, 1) for length in (1024, 2048, 4096, 8192, 16384)
    ]


def test_mode_is_not_measured_after_its_first_failure_and_the_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = ("out_of_memory", "killed")
    workers = Workers(lambda mode, length: 1e-3, {("train", 2048): killed, ("inference", 4096): killed})
    found = run_profile(workers, monkeypatch, [1024, 2048, 4096, 8192])
    assert tried(workers) == [(1024, ["inference", "train"]), (2048, ["inference", "train"]), (4096, ["inference"])]
    assert [(e["mode"], e["length"], e["status"], e["reason"]) for e in found["speed"] if e["status"] != "ok"] == [
        ("inference", 4096, "out_of_memory", "killed"),
        ("train", 2048, "out_of_memory", "killed"),
    ]


def test_mode_after_one_that_ended_the_process_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3, {("inference", 2048): ("out_of_memory", "killed")})
    found = run_profile(workers, monkeypatch, [1024, 2048, 4096])
    assert len(workers.jobs) == 2
    last = [entry for entry in found["speed"] if entry["length"] == 2048]
    assert [entry["status"] for entry in last] == ["out_of_memory", "out_of_memory"]
    assert last[1]["reason"] == "not tried, because inference ended the process: killed"


def test_length_predicted_to_be_too_slow_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # The time of a training step quadruples when the length doubles: 0.5, 2 and 8 s. Five steps of 8 s are 40 s.
    workers = Workers(lambda mode, length: (0.5 if mode == "train" else 0.001) * (length / 1024) ** 2)
    found = run_profile(workers, monkeypatch, [1024, 2048, 4096, 8192], limit_seconds=30)
    assert tried(workers)[2:] == [(4096, ["inference"]), (8192, ["inference"])]
    *_, last = [entry for entry in found["speed"] if entry["mode"] == "train"]
    assert (last["length"], last["status"], last["median_seconds"]) == (4096, "timeout", None)
    assert "predicted to take 8 s" in last["reason"] and "limit is 30 s" in last["reason"]


# ---- real processes


def test_worker_process_measures_one_job() -> None:
    request = {**job(length=64), "modes": ["train"], "step_flops": True}
    request["config"]["measure"]["speed_seconds"] = 0.05
    found, _ = run_worker(request, timeout_seconds=600)
    assert [next(iter(result)) for result in found] == ["speed", "step_flops"]
    assert found[0]["speed"]["status"] == "ok"
    assert found[0]["speed"]["n"] >= timing.STEPS


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes a module for a worker process, without slow imports, and returns its name."""

    def write(text: str) -> str:
        (tmp_path / "fake_worker.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return "fake_worker"

    return write


@pytest.mark.parametrize(
    ("program", "seconds", "status", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", 60, "out_of_memory", "killed"),
        ("import time; time.sleep(60)", 1, "timeout", "within 1 s"),
    ],
    ids=["killed", "hangs"],
)
def test_killed_and_hanging_processes_are_reported(
    write_module: Callable[[str], str], program: str, seconds: float, status: str, reason: str
) -> None:
    found, ending = run_worker(job(), timeout_seconds=seconds, module=write_module(program))
    assert found == []
    assert ending[0] == status and reason in ending[1]


@pytest.mark.parametrize("reused", [True, False])
def test_process_runs_several_jobs_until_it_ends(write_module: Callable[[str], str], reused: bool) -> None:
    program = (
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    length = json.loads(line)['length']\n"
        "    print(json.dumps({'pid': os.getpid()}), flush=True)\n"
        "    if length == 3: os.kill(os.getpid(), 9)\n"
        "    print('null', flush=True)"
    )
    variables, found, endings = {"A": "1"}, [], []
    with JobWorkers(reused, write_module(program)) as workers:
        for length in (1, 2, 3, 4):
            results, ending = workers.run({"length": length}, 600, variables)
            found.append(results[0]["pid"])
            endings.append(ending[0])
        other, _ = workers.run({"length": 5}, 600, {"A": "2"})
    assert endings == ["failed", "failed", "out_of_memory", "failed"], "results before the end of a process are kept"
    assert (len({*found, other[0]["pid"]}) == 3) if reused else (len({*found, other[0]["pid"]}) == 5)
    assert not any(is_running(pid) for pid in found)


@pytest.mark.slow
def test_process_that_cannot_start_reports_its_last_error_line() -> None:
    _, (status, reason) = run_worker({**job(), "spec": {"grid": None, "nonsense": 1}}, timeout_seconds=600)
    assert status == "failed"
    assert reason.startswith("TypeError: ") and "nonsense" in reason


def test_child_process_has_the_import_path_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "yaml.py").write_text("raise SystemExit(3)")
    done = subprocess.run(
        [sys.executable, "-c", "import only_here, yaml"], env=environment(), cwd=tmp_path / "elsewhere", check=False
    )
    assert done.returncode == 0


PARENT = """
import json, sys
from lra_bench.profiling.worker_pool import run_worker
print("ready", flush=True)
run_worker(json.loads(sys.argv[1]), 600, module=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_worker_does_not_outlive_its_parent(number: signal.Signals, write_module: Callable[[str], str]) -> None:
    """On SIGINT the parent kills the worker; if the parent is killed, the worker is killed by its death signal."""
    request = job("Failing", how="hangs", limit=32)
    hangs = write_module("import time\nopen('/proc/self/oom_score_adj', 'w').write('1000')\ntime.sleep(60)")
    module = hangs if number == signal.SIGINT else "lra_bench.profiling.worker"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(request), module],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        child = wait_for(lambda: next(iter(children.read_text().split()), None))
        score = Path(f"/proc/{child}/oom_score_adj")
        wait_for(lambda: score.read_text().strip() == "1000")  # the worker is prepared
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=20)
    wait_for(lambda: not is_running(int(child)))
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors and "Traceback" not in errors.partition("KeyboardInterrupt")[2]


def wait_for(condition: Any, seconds: float = 20.0) -> Any:
    """Wait until ``condition()`` is true and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"the condition is not met after {seconds} s")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_prediction_follows_a_power_law() -> None:
    for power in np.linspace(0, 2.5, 6):
        entries = [{**unmeasured("train", n, 1, "ok", ""), "p10_seconds": (n / 1024) ** power} for n in (1024, 2048)]
        reason = scaling.too_slow(entries, "train", 8192, CPU, limit_seconds=0.001)
        assert reason is not None and f"take {8**power:.3g} s" in reason


def test_exponent_of_predicted_times_is_bounded() -> None:
    entries = [{**unmeasured("train", n, 1, "ok", ""), "p10_seconds": (n / 1024) ** 3} for n in (1024, 2048)]
    assert f"take {8 * 2**2.5:.3g} s" in str(scaling.too_slow(entries, "train", 4096, CPU, limit_seconds=30))


def test_memory_is_predicted_by_a_power_law() -> None:
    entries = [
        {**unmeasured("train", n, 1, "ok", ""), "peak_resident_growth_bytes": 1e9 * (n / 1024) ** 2}
        for n in (1024, 2048)
    ]
    assert scaling.too_large(entries, "train", 4096, int(17e9)) is None
    assert "need 16 GB" in scaling.too_large(entries, "train", 4096, int(15e9))
    assert "memory_limit_gigabytes" in scaling.too_large(entries, "train", 4096, int(15e9))
    assert scaling.too_large(entries[:1], "train", 4096, 1) is None, "one length must not give a prediction"
    assert scaling.too_large(entries, "inference", 4096, 1) is None
    assert scaling.too_large(entries, "train", 4096, None) is None


def test_speed_entries_contain_flops_and_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 0.5)
    answer = workers.run

    def counting(request: dict, *rest: Any) -> tuple[list[dict], tuple[str, str]]:
        found, ending = answer(request, *rest)
        return [*found, {"step_flops": {"inference": request["length"], "train": None}}], ending

    monkeypatch.setattr(workers, "run", counting)
    monkeypatch.setattr(profiling, "JobWorkers", workers)
    options = config(lengths=[1024, 2048])
    options.measure.flops = True
    found = profile(options, toy.spec(), hardware())["speed"]
    inference, train = ([entry for entry in found if entry["mode"] == mode] for mode in ("inference", "train"))
    assert [entry["flops"] for entry in inference] == [2 * 1024, 2 * 2048], "the batch has two rows"
    assert [entry["flops_per_second"] for entry in inference] == [4 * 1024, 4 * 2048]
    assert [entry["utilisation"] for entry in inference] == [4 * 1024 / 1e9, 4 * 2048 / 1e9]
    assert {(entry["flops"], entry["flops_per_second"], entry["utilisation"]) for entry in train} == {(None,) * 3}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_peak_memory_does_not_contain_memory_kept_by_the_allocator() -> None:
    """Attention in slices needs O(N) memory at a time, in hundreds of blocks of which glibc would keep most."""
    with configuration.hydra_context():
        composed = configuration.compose(
            ["model=transformer", "protocol=smoke", "hardware=cpu", "hardware.threads=1", "train.clip=null"]
        ).config
    spec = dataclasses.asdict(build_task(composed).spec)
    peaks = []
    for length in (512, 2048):
        request = {
            **job(length=length),
            "config": as_dict(composed),
            "spec": spec,
            "memory_only": True,
            "modes": ["train"],
        }
        answers, _ = run_worker({**request, "batch_size": 1}, 120, RETURN_FREED_MEMORY)
        memory = next(answer["memory"][1] for answer in answers if "memory" in answer)
        peaks.append(memory["peak_resident_growth_bytes"])
    shorter, longer = peaks
    assert longer < 6 * shorter, peaks
