"""The step benchmark as a measurement of a cell: speed, memory, growth, FLOPs and energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lra_bench.contracts.measurement import Column, Display, Limit, Measurement, Points, listed, spelled
from lra_bench.profiling.sections import Energy, Flops, Growth, SpeedPoint
from lra_bench.progress import bar, say

if TYPE_CHECKING:
    from lra_bench.config.schema import CellConfig
    from lra_bench.contracts import TaskSpec
    from lra_bench.runtime.hardware import Hardware

    from .subject import Context, Subject

BATCH_SIZE = {"cpu": 1, "cuda": 32}
LIMIT_SECONDS = 25.0
NOT_DISTRIBUTED = "the step benchmark measures a single process; set hardware.strategy=none to run it"
GROWTH = {"time": "time", "memory": "peak memory"}
TRAINING, FORWARD = "a training step", "a forward pass"


def training_flops(run: Any, tokens_seen: str = "training.tokens_seen") -> float | None:
    """Return the floating-point operations of training on the number of tokens at a path, None if unknown."""
    per_token, tokens = map(run.find, ("flops.per_token_training", tokens_seen))
    return None if per_token is None or tokens is None else per_token * tokens


def flops_per_step(run: Any) -> float | None:
    """Return the floating-point operations of a training step, None if unknown."""
    total, steps = training_flops(run), run.find("training.steps")
    return None if total is None or not steps else total / steps


def limit(run: Any, mode: str) -> Limit | None:
    """Return the status and shortest length at which the step benchmark failed, None if it did not."""
    failed = [point for point in run.record.speed if point["mode"] == mode and point["status"] != "ok"]
    return min((Limit(point["status"], point["length"]) for point in failed), key=lambda at: at.length, default=None)


def _of_mode(mode: str, word: str, step: str, timing: str, memory: str, failing: str) -> Iterator[Column]:
    """Yield the columns of a mode; the other arguments are its words in headings and descriptions.

    Cells end with the length of the step benchmark unless the heading states it.
    """

    def timed(row: Mapping[str, Any], context: Any) -> str:
        return str(context.length(row))

    yield Column(
        name=f"{mode}_tokens_per_second",
        help=f"tokens per second of {step} {timing}",
        run=lambda run: run.alone(getattr(run, mode)),
        seeds="mean",
        dtype="float64",
        display=Display(f"{word} tokens/s {{at}}", "{:,.0f}", tail=timed, machine=True),
    )
    allocated = f"peak of the memory allocated for tensors on CUDA during {memory}, bytes; missing on a CPU"
    resident = f"peak growth of the process's resident memory (RSS) during {memory.partition(',')[0]}, bytes"
    for name, heading, help in (
        ("peak_allocated_bytes", f"{word} memory", allocated),
        ("peak_resident_growth_bytes", "RSS growth", f"{resident}; missing on a GPU"),
    ):
        yield Column(
            name=f"{mode}_{name}",
            help=help,
            source=f"{mode}.{name}",
            seeds="largest",
            dtype="Int64",
            display=Display(f"{heading} {{at}}", "megabytes", tail=timed, first="ascending", machine=True),
        )
    help = f"batch size of {step} in the step benchmark"
    yield Column(f"{mode}_batch_size", help, f"{mode}.batch_size", dtype="Int64")
    yield Column(
        name=f"{mode}_limit",
        help=f"status and shortest length at which the step benchmark of {failing}",
        run=lambda run: limit(run, mode),
        display=Display(
            "ended", left=True, text=lambda row, _: str(row["train_limit"] or row["inference_limit"] or "")
        ),
    )


class StepBenchmark(Measurement):
    """Speed, memory, FLOPs and energy of untrained models at increasing lengths, in separate processes."""

    name = "speed"
    title = "Growth and cost"
    stage = "measuring speed and memory"
    needs = ()
    sections = MappingProxyType(
        {"speed": list[SpeedPoint], "growth": dict[str, Growth], "flops": Flops, "energy": Energy}
    )
    columns = (
        *(
            Column(
                name=f"flops_per_token_{part}",
                help=f"floating point operations of the {passes} per token",
                source=f"flops.per_token_{part}",
                seeds="mean",
            )
            for part, passes in (("forward", "forward pass"), ("training", "forward and the backward pass"))
        ),
        Column(
            name="flops_per_step",
            help="floating point operations of the forward and the backward pass of a training step, for its mean "
            "number of tokens without padding",
            run=flops_per_step,
            seeds="mean",
        ),
        Column(
            name="train_flops",
            help="floating point operations of the forward and the backward passes of the training run, for its number "
            "of tokens without padding",
            run=training_flops,
            seeds="mean",
            dtype="float64",
        ),
        Column(
            name="joules_per_step",
            help="energy of a training step in the step benchmark, joules",
            source="energy.joules_per_step",
            seeds="mean",
        ),
        *_of_mode(
            *("train", "step", TRAINING),
            "in the step benchmark, at the longest of the lengths that the largest number of runs of the same task, "
            "protocol and hardware measured; empty if other programs ran at the same time, or if this is unknown",
            f"{TRAINING}, including parameters, gradients, optimizer state and batch",
            "training failed, empty if it did not; then tables show those of inference",
        ),
        *_of_mode(
            *("inference", "inference", FORWARD),
            f"in the step benchmark, at the same length as {TRAINING}",
            f"{FORWARD} without gradients, including parameters and batch",
            "inference failed, empty if it did not",
        ),
        *(
            Column(
                name=f"{mode}_time_exponent",
                help=f"growth exponent a of the time of {step}, time ~ length^a",
                source=f"growth.{mode}.time_exponent",
                seeds="mean",
            )
            for mode, step in (("train", TRAINING), ("inference", FORWARD))
        ),
    )
    figures = ("lra_bench.figures.speed_vs_length:speed_vs_length",)
    logged = ("speed_vs_length",)
    points = (
        Points(
            name="speed",
            of=lambda sections: sections["speed"],
            columns={
                "mode": "train (a training step) or inference (a forward pass without gradients), called a step below",
                "length": "sequence length, tokens",
                "batch_size": "batch size, number of sequences per step",
                "status": "ok, or the status that explains why there is no time",
                "reason": "reason for the status in words",
                "n": "number of timed steps",
                "median_seconds": "median time of a step, seconds",
                "p10_seconds": "10th percentile of the time of a step, seconds",
                "p90_seconds": "90th percentile of the time of a step, seconds",
                "tokens_per_second": "tokens per second of a step",
                "peak_allocated_bytes": "peak of the memory allocated for tensors on CUDA during a step, bytes; "
                "missing on a CPU",
                "peak_resident_growth_bytes": "peak growth of the process's resident memory (RSS) during a step, "
                "bytes; missing on a GPU",
            },
            path="speed",
            curve=lambda point: (point["mode"],),
            at=lambda point: str(point["length"]),
            numbers=(
                *("status", "median_seconds", "tokens_per_second"),
                *("peak_allocated_bytes", "peak_resident_growth_bytes"),
            ),
            charts={
                "time_over_length": ("median_seconds", "seconds of a step"),
                "memory_over_length": ("peak_allocated_bytes", "peak of allocated memory, bytes"),
                "resident_over_length": ("peak_resident_growth_bytes", "growth of resident memory, bytes"),
            },
        ),
    )

    def measure(self, subject: Subject, context: Context) -> dict[str, Any]:
        """Return the four sections."""
        return profile(subject.config, subject.task.spec, context.group)

    @classmethod
    def facts(cls, section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield the FLOPs, the time and memory of a step at each length, and their growth."""
        if section["flops"] is not None:
            yield "FLOPs", listed(section["flops"])
        for point in section["speed"]:
            yield f"{point['mode']} {point['length']:,}", _speed(point)
        for mode, slopes in section["growth"].items():
            if text := listed({name: value for name, value in slopes.items() if name != "lengths"}):
                yield f"growth, {mode}", text

    @classmethod
    def facts_of_seeds(cls, sections: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield the growth of a step in the first seed that knows it, and FLOPs and energy of the last seed."""
        for mode in ("train", "inference"):
            for quantity, text in GROWTH.items():
                slopes = [dict(each["growth"][mode]) for each in sections if mode in each["growth"]]
                slope = next((each for each in slopes if each[f"{quantity}_exponent"] is not None), None)
                if slope:
                    low, high = slope[f"{quantity}_low"], slope[f"{quantity}_high"]
                    interval = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else ""
                    yield f"{text} of a step, {mode}", f"~ length^{slope[f'{quantity}_exponent']:.2f}{interval}"
        for name, value in {**(sections[-1]["flops"] or {}), **(sections[-1]["energy"] or {})}.items():
            if value not in (None, [], ""):
                yield f"{'FLOPs ' if name.startswith('per_token') else ''}{name.replace('_', ' ')}", spelled(value)


def _speed(point: SpeedPoint) -> str:
    if point["median_seconds"] is None:
        return f"{point['status']}: {point['reason']}"
    memory = point["peak_allocated_bytes"] or point["peak_resident_growth_bytes"]
    peak = f", peak {memory / 2**20:,.1f} MiB" if memory else ""
    kernel = f", attention backend {point['attention_backend']}" if point["attention_backend"] else ""
    share = f", utilisation {point['utilisation']:.2g}" if point["utilisation"] is not None else ""
    step = f"{1e3 * point['median_seconds']:.2f} ms per step, batch size {point['batch_size']}, {point['n']} steps"
    return step + peak + kernel + share


def profile(
    config: CellConfig, spec: TaskSpec, hardware: Hardware, limit_seconds: float = LIMIT_SECONDS
) -> dict[str, Any]:
    """Measure the sections ``speed``, ``growth``, ``flops`` and ``energy`` of a composed configuration.

    Lengths and batch size come from ``config.measure``; by default they depend on the device. On a CPU one process
    times all lengths and another one measures their memory; on CUDA, or with compiled code, each length has a process
    of its own. Inference and training run sequentially. If a mode fails at a length, its entry has status and reason,
    and longer lengths are not measured. The status is ``timeout`` if the minimum number of steps takes more than
    ``limit_seconds``, measured or predicted from the growth between the two previous lengths. If ``hardware`` uses
    several training processes, nothing is measured and a message gives the reason: a step of a single process does not
    represent their joint step.
    """
    import torch

    from lra_bench.profiling.bench import flops_per_token
    from lra_bench.profiling.energy import unknown_energy
    from lra_bench.profiling.interleave import WorkerPool, first_visits
    from lra_bench.profiling.scaling import growth
    from lra_bench.profiling.sections import FIXED, add_flops
    from lra_bench.profiling.types import MODES, ComparisonModel, Setting, lengths_of

    kind, measure = hardware.device.type, config.measure
    found: dict[str, Any] = {"speed": [], "growth": {}, "flops": None, "energy": None}
    if hardware.strategy != "none":
        say(f"Speed at increasing lengths is not measured: {NOT_DISTRIBUTED}.")
        return found | {"flops": _unknown_flops(spec, NOT_DISTRIBUTED), "energy": unknown_energy(NOT_DISTRIBUTED)}
    lengths, batch_size = lengths_of(measure, kind), measure.speed_batch_size or BATCH_SIZE[kind]
    if measure.flops and not lengths:  # otherwise the process that times the first length counts them
        with torch.random.fork_rng(devices=[]):
            found["flops"] = {**flops_per_token(config, spec), "ceiling_per_second": None}
    if kind == "cuda":
        torch.cuda.empty_cache()
    settings = [
        Setting(spec, length, batch_size, FIXED, hardware, limit_seconds, consecutive=True) for length in lengths
    ]
    model, ceiling = ComparisonModel("the model", "", config), None
    with WorkerPool() as workers, bar(len(lengths), "Measuring speed and memory", unit="lengths") as advance:
        for visit in first_visits([model], settings, workers, lambda done, doing: None):
            is_first, counted = visit.setting is settings[0], dict[str, Any]()
            if measure.energy and is_first:
                answer = visit.answer(model.name, "energy")
                found["energy"] = answer.get("energy") or unknown_energy(answer["reason"])
            if measure.flops and visit.visits:
                counted = visit.answer(model.name, "count_flops", per_token=is_first)
                if is_first:
                    ceiling = visit.answer(model.name, "peak_matmul_flops").get("flops_per_second")
                    section = counted.get("section") or _unknown_flops(spec, counted["reason"])
                    found["flops"] = section | {"ceiling_per_second": ceiling}
            for one in visit.found:
                add_flops(one.entry, counted.get("steps", {}).get(one.entry["mode"]), ceiling)
                found["speed"].append(one.entry)
            if kind == "cuda" or hardware.compile:
                workers.end()  # the next length would depend on the caches that this one has filled
            advance(1)
    found["speed"].sort(key=lambda entry: (MODES.index(entry["mode"]), entry["length"]))
    found["growth"] = growth(found["speed"])
    return found


def _unknown_flops(spec: TaskSpec, reason: str) -> dict[str, Any]:
    """Return a section ``flops`` without counts, with the reason."""
    from lra_bench.profiling.flops import FlopCount

    counts = FlopCount(None, None, 0, spec.train_length, f"none ({reason})")
    return {**counts.as_record(), "ceiling_per_second": None}
