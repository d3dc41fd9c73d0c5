"""The step benchmark of toy networks: results of workers, handling of failed workers, and skipped lengths."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections import deque
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
from lra_bench.measurements import steps as benchmark
from lra_bench.measurements.steps import profile
from lra_bench.profiling import bench, energy, interleave, scaling, timing, worker
from lra_bench.profiling.bench import inference_step, train_step
from lra_bench.profiling.interleave import MEMORY_VARIABLES, MODULE
from lra_bench.profiling.sections import Energy, Flops, SpeedPoint, unmeasured
from lra_bench.profiling.synthetic import spec_at, synthetic_batch, tokens_in
from lra_bench.runtime.hardware import Hardware, HardwareOptions, resolve
from lra_bench.runtime.memory import KEEP_FREED_MEMORY, RETURN_FREED_MEMORY
from lra_bench.runtime.subprocesses import WorkerEnded, WorkerProcess, environment
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


def job(cell: CellConfig, spec: TaskSpec | None = None, batch: int = 2) -> dict[str, Any]:
    """Return the job of a worker."""
    common = {"attention": None, "memory_limit_bytes": None}
    return {"config": as_dict(cell), "spec": dataclasses.asdict(spec or toy.spec()), "batch": batch, **common}


def measured(
    cell: CellConfig, spec: TaskSpec | None = None, limit_seconds: float = 30.0, **measure: Any
) -> dict[str, Any]:
    """Return the step benchmark of a configuration with other options of ``measure``."""
    cell.measure = dataclasses.replace(cell.measure, **measure)
    return profile(cell, spec or toy.spec(), hardware(), limit_seconds)


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


def test_synthetic_rows_of_generation_have_one_separator_in_the_middle() -> None:
    spec = dataclasses.replace(toy.spec(), kind="generation", separator=2)
    tokens = synthetic_batch(spec, 3, 50, CPU).tokens
    assert tokens is not None and (tokens == 2).nonzero().tolist() == [[row, 25] for row in range(3)]


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
def test_both_modes_are_measured_for_every_kind_of_task(in_process: list, kind: str) -> None:
    found = measured(config(lengths=[32]), toy.spec(kind))["speed"]
    assert [entry["mode"] for entry in found] == ["inference", "train"]
    for entry in found:
        assert set(entry) == set(get_type_hints(SpeedPoint))
        assert (entry["status"], entry["reason"], entry["length"], entry["batch_size"]) == ("ok", "", 32, 2)
        assert entry["n"] >= timing.STEPS and not entry["short_run"]
        tokens = 2 * 32 * (2 if kind == "matching" else 1)
        assert entry["tokens_per_second"] == pytest.approx(tokens / entry["median_seconds"])
        assert entry["peak_allocated_bytes"] is None and entry["peak_reserved_bytes"] is None
    assert {(entry["batch_policy"], entry["attention_backend"]) for entry in found} == {("fixed", None)}
    # For inference the weights; for training also gradients, two moments, and a step counter per tensor.
    weights = sum(parameter.numel() for parameter in bench.model_at(config(), toy.spec(kind), 32).parameters())
    tensors = len(list(bench.model_at(config(), toy.spec(kind), 32).parameters()))
    assert [entry["static_bytes"] for entry in found] == [4 * weights, 4 * (4 * weights + tensors)]
    peaks = [entry["peak_resident_growth_bytes"] for entry in found]
    assert None not in peaks or sys.platform != "linux"


@pytest.mark.parametrize(
    ("how", "training_only", "statuses", "reason"),
    [
        ("memory", False, ["out_of_memory", "out_of_memory"], "allocate"),
        ("memory", True, ["ok", "out_of_memory"], "allocate"),
        ("error", False, ["failed", "failed"], "ValueError: shapes do not match"),
        ("build", False, ["incompatible", "incompatible"], "fixed to 31 positions"),
        ("refuses", False, ["incompatible", "incompatible"], "takes at most 31"),
        ("slow", True, ["ok", "timeout"], "the limit is 2 s"),
    ],
)
def test_failures_have_status_and_reason(
    in_process: list, how: str, training_only: bool, statuses: list[str], reason: str
) -> None:
    cell = config("Failing", [32], how=how, limit=32, training_only=training_only)
    found = measured(cell, limit_seconds=2.0)["speed"]
    assert [entry["status"] for entry in found] == statuses
    for entry in found:
        if entry["status"] != "ok":
            assert reason in entry["reason"] and "\n" not in entry["reason"]
            assert entry["median_seconds"] is None and entry["n"] == 0


def test_flops_and_energy_are_measured_after_the_steps(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "counter_of", lambda device: "no counter")
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    found = measured(config(lengths=[32]), flops=True, energy=True)
    memory = ["build", "measure_peak_memory", "measure_peak_memory"]
    assert [command for _, command in in_process] == [
        *("build", "measure", "measure", *memory, "energy", "count_flops", "peak_matmul_flops"),
    ]
    assert found["flops"]["ceiling_per_second"] == 1e9
    # The FLOPs of the head are per row, all others are per token.
    head, per_token = 2 * 8 * 5, found["flops"]["per_token_forward"] - 2 * 8 * 5 / 64
    inference, train = (entry["flops"] for entry in found["speed"])
    assert inference == pytest.approx(2 * (32 * per_token + head)) and train == 3 * inference
    assert set(found["energy"]) == set(get_type_hints(Energy))
    assert found["energy"] == {"joules_per_step": None, "route": "none: no counter"}
    assert set(found["flops"]) == set(get_type_hints(Flops))
    assert found["flops"]["length"] == 64, "FLOPs must be counted at the training length"
    assert found["flops"]["per_token_training"] == 3 * found["flops"]["per_token_forward"]


def test_flops_are_counted_at_the_requested_length(in_process: list, monkeypatch) -> None:
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    for requested, length in ((None, toy.spec().train_length), (16, 16)):
        found = measured(config(lengths=[32]), flops=True, flops_length=requested)["flops"]
        assert found["length"] == length and found["per_token_forward"] > 0


def test_flops_and_lengths_of_which_only_one_can_be_measured(in_process: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    found = measured(config("Failing", [32], how="build", limit=40), flops=True)
    assert [entry["status"] for entry in found["speed"]] == ["ok", "ok"]
    assert found["flops"]["per_token_forward"] is None
    assert "fixed to 39 positions" in found["flops"]["route"]
    found = measured(config("Failing", [128], how="build", limit=70), flops=True, energy=True)
    assert [entry["status"] for entry in found["speed"]] == ["incompatible", "incompatible"]
    assert found["flops"]["per_token_forward"] > 0 and found["flops"]["ceiling_per_second"] == 1e9
    assert found["energy"]["route"].startswith("none: ")


FAST_MODELS = {"transformer", "linear", "local", "reformer", "sinkhorn", "luna", "nystrom", "fnet", "gmlp"}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "model",
    [
        name if name in FAST_MODELS else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(option_files("model"))
    ],
)
def test_every_model_can_be_measured(in_process: list, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "peak_matmul_flops", lambda hardware: 1e9)
    composed = configuration.compose([f"model={model}", "protocol=smoke", "hardware=cpu", "hardware.threads=1"]).config
    spec = build_task(composed).spec
    length = 2 * spec.train_length
    options = {"speed_lengths": [length], "speed_batch_size": 2, "speed_seconds": 0.01, "energy": False}
    found = measured(composed, spec, **options)
    assert [(entry["status"], entry["length"]) for entry in found["speed"]] == [("ok", length)] * 2
    assert found["flops"]["per_token_training"] > found["flops"]["per_token_forward"] > 0


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
    assert found["joules_per_step"] == pytest.approx(2.5)
    assert found["route"].startswith("joules over 0.") and f"{steps} steps" in found["route"]
    assert energy.measure_energy(step, CPU, energy.Counter("stuck", lambda: 5), 0.01)["joules_per_step"] is None


# ---- evaluation of worker results


class Workers:
    """Replacement for ``WorkerProcess``: answers with seconds per step by mode and length, or ends with a status.

    ``jobs`` and ``memory_jobs`` contain each length that was built for timing or for memory, with the modes that were
    measured, ``batches`` the batch sizes of ``jobs``, ``counted`` the arguments of ``count_flops``, and ``started`` the
    variables of the processes.
    """

    def __init__(self, seconds: Any, endings: dict[tuple[str, int], tuple[str, str]] | None = None) -> None:
        self.seconds, self.endings = seconds, endings or {}
        self.jobs: list[tuple[int, list[str]]] = []
        self.memory_jobs: list[tuple[int, list[str]]] = []
        self.batches: list[int] = []
        self.counted: list[bool] = []
        self.started: list[dict[str, str]] = []
        self.steps: Callable[[int], dict] = lambda length: {}

    def __call__(self, module: str, job: dict, variables: dict[str, str]) -> "Process":
        self.started.append(variables)
        return Process(self, job["batch"], variables)


class Process:
    """A process of ``Workers``, in which each other method is a command."""

    def __init__(self, workers: Workers, batch: int, variables: dict[str, str]) -> None:
        assert variables in (KEEP_FREED_MEMORY, MEMORY_VARIABLES)
        self.workers, self.batch, self.times = workers, batch, variables == KEEP_FREED_MEMORY
        self.waiting: deque[tuple[str, dict]] = deque()

    def send(self, command: str, **arguments: Any) -> None:
        self.waiting.append((command, arguments))

    def receive(self, timeout: float) -> dict:
        command, arguments = self.waiting.popleft()
        return getattr(self, command)(**arguments)

    def build(self, length: int, flops: bool) -> dict:
        self.length = length
        (self.workers.jobs if self.times else self.workers.memory_jobs).append((length, []))
        self.workers.batches += [self.batch] if self.times else []
        return {"flops": {}}

    def measure(self, mode: str, limit_seconds: float) -> dict:
        assert self.times
        self.workers.jobs[-1][1].append(mode)
        if ending := self.workers.endings.get((mode, self.length)):
            raise WorkerEnded(*ending)
        seconds = self.workers.seconds(mode, self.length)
        entry = unmeasured(mode, self.length, self.batch, "ok", "")
        return {"entry": {**entry, "median_seconds": seconds, "p10_seconds": seconds}}

    def measure_peak_memory(self, mode: str, batch_size: int) -> dict:
        assert not self.times
        self.workers.memory_jobs[-1][1].append(mode)
        return {"memory": {"peak_resident_growth_bytes": 1000 * self.length, "activation_bytes": None}}

    def count_flops(self, per_token: bool) -> dict:
        self.workers.counted.append(per_token)
        section = {"length": self.length}
        return {"steps": self.workers.steps(self.length), **({"section": section} if per_token else {})}

    def peak_matmul_flops(self) -> dict:
        return {"flops_per_second": 1e9}

    def end(self) -> None: ...


def run_profile(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, lengths: list[int] | None, limit_seconds: float = 25, **measure
) -> dict:
    monkeypatch.setattr(interleave, "WorkerProcess", workers)
    return measured(config(lengths=lengths), limit_seconds=limit_seconds, **measure)


def test_lengths_are_measured_in_increasing_order_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: length / 1e5)
    advances: list[int] = []

    @contextmanager
    def counting(total: int, *_: Any, **__: Any) -> Iterator[Callable[[int], None]]:
        assert total == 3
        yield advances.append

    monkeypatch.setattr(benchmark, "bar", counting)
    found = run_profile(workers, monkeypatch, [4096, 1024, 2048])
    assert workers.jobs == [(length, ["inference", "train"]) for length in (1024, 2048, 4096)]
    assert workers.memory_jobs == workers.jobs, "memory must be measured for all timed modes, in separate processes"
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
    assert measured(config(lengths=[]))["flops"] is None
    torch.manual_seed(0)
    found = measured(config(lengths=[]), flops=True)
    after = torch.rand(1)
    assert found["speed"] == [] and set(found["flops"]) == set(get_type_hints(Flops))
    assert found["flops"]["per_token_training"] == 3 * found["flops"]["per_token_forward"] > 0
    assert (found["flops"]["length"], found["flops"]["ceiling_per_second"]) == (toy.spec().train_length, None)
    torch.manual_seed(0)
    assert after == torch.rand(1)


def test_flops_per_token_are_counted_only_at_the_first_length(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3)
    found = run_profile(workers, monkeypatch, [1024, 2048], flops=True)
    assert found["flops"] == {"length": 1024, "ceiling_per_second": 1e9}
    assert workers.counted == [True, False]


def test_sections_missing_after_a_killed_process_report_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3, {("train", 1024): ("out_of_memory", "killed")})
    found = run_profile(workers, monkeypatch, [1024], flops=True, energy=True)
    assert found["flops"]["per_token_forward"] is None and "killed" in found["flops"]["route"]
    assert found["energy"]["joules_per_step"] is None and "killed" in found["energy"]["route"]
    assert set(found["flops"]) == set(get_type_hints(Flops)) and set(found["energy"]) == set(get_type_hints(Energy))


def test_lengths_and_batch_size_default_to_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(lambda mode, length: 1e-3)
    run_profile(workers, monkeypatch, None, speed_batch_size=None)
    assert [length for length, _ in workers.jobs] == [1024, 2048, 4096, 8192, 16384]
    assert workers.batches == [1] * 5


@pytest.mark.parametrize("compiled", [False, True])
def test_processes_are_reused_at_the_next_length_unless_code_is_compiled(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    workers = Workers(lambda mode, length: 1e-3)
    monkeypatch.setattr(interleave, "WorkerProcess", workers)
    profile(config(lengths=[1024, 2048, 4096]), toy.spec(), dataclasses.replace(hardware(), compile=compiled))
    assert workers.started == [KEEP_FREED_MEMORY, MEMORY_VARIABLES] * (3 if compiled else 1)


def test_mode_is_not_measured_after_its_first_failure_and_the_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = ("out_of_memory", "killed")
    workers = Workers(lambda mode, length: 1e-3, {("train", 2048): killed, ("inference", 4096): killed})
    found = run_profile(workers, monkeypatch, [1024, 2048, 4096, 8192])
    assert workers.jobs == [(1024, ["inference", "train"]), (2048, ["inference", "train"]), (4096, ["inference"])]
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
    assert workers.jobs[2:] == [(4096, ["inference"]), (8192, ["inference"])]
    *_, last = [entry for entry in found["speed"] if entry["mode"] == "train"]
    assert (last["length"], last["status"], last["median_seconds"]) == (4096, "timeout", None)
    assert "predicted to take 8 s" in last["reason"] and "limit is 30 s" in last["reason"]


# ---- real processes


def test_worker_process_times_a_mode() -> None:
    cell = config()
    cell.measure.speed_seconds = 0.05
    with WorkerProcess(MODULE, job(cell), KEEP_FREED_MEMORY) as process:
        assert process.request(600, "build", length=64, flops=True)["flops"]["train"] > 0
        entry = process.request(600, "measure", mode="train", limit_seconds=30.0)["entry"]
    assert entry["status"] == "ok" and entry["n"] >= timing.STEPS


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
    with WorkerProcess(write_module(program), {}) as process, pytest.raises(WorkerEnded, match=reason) as ended:
        process.receive(seconds)
    assert ended.value.status == status


def test_answers_before_the_end_of_a_process_are_kept_and_its_own_processes_end_with_it(
    write_module: Callable[[str], str],
) -> None:
    program = (
        "import json, os, subprocess, sys\n"
        "other = subprocess.Popen(['sleep', '60'])\n"
        "print(json.dumps({'pids': [os.getpid(), other.pid]}), flush=True)\n"
        "for line in sys.stdin: print(json.dumps(json.loads(line) | {'variable': os.environ['A']}), flush=True)"
    )
    with WorkerProcess(write_module(program), {"job": 1}, {"A": "1"}) as process:
        pids = process.receive(600)["pids"]
        assert process.receive(600) == {"job": 1, "variable": "1"}
        assert process.request(600, "build", length=3) == {"command": "build", "length": 3, "variable": "1"}
    wait_for(lambda: not any(is_running(pid) for pid in pids))


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
from lra_bench.runtime.subprocesses import WorkerProcess
print("ready", flush=True)
with WorkerProcess(sys.argv[2], json.loads(sys.argv[1])) as worker:
    worker.request(600, "build", length=32, flops=False)
    worker.request(600, "measure", mode="train", limit_seconds=30)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_worker_does_not_outlive_its_parent(number: signal.Signals, write_module: Callable[[str], str]) -> None:
    """On SIGINT the parent kills the worker; if the parent is killed, the worker is killed by its death signal."""
    request = job(config("Failing", how="hangs", limit=32))
    hangs = write_module("import time\nopen('/proc/self/oom_score_adj', 'w').write('1000')\ntime.sleep(60)")
    module = hangs if number == signal.SIGINT else MODULE
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
    workers.steps = lambda length: {"inference": length, "train": None}
    found = run_profile(workers, monkeypatch, [1024, 2048], flops=True)["speed"]
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
    composed = configuration.compose(
        ["model=transformer", "protocol=smoke", "hardware=cpu", "hardware.threads=1", "train.clip=null"]
    ).config
    peaks = []
    for length in (512, 2048):
        with WorkerProcess(MODULE, job(composed, build_task(composed).spec, 1), RETURN_FREED_MEMORY) as process:
            process.request(60, "build", length=length, flops=False)
            memory = process.request(60, "measure_peak_memory", mode="train", batch_size=1)["memory"]
        peaks.append(memory["peak_resident_growth_bytes"])
    shorter, longer = peaks
    assert longer < 6 * shorter, peaks
