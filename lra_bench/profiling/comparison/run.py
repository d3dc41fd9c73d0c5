"""Compare the cost of several models with exact attention at increasing lengths, timed interleaved at every length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from lra_bench.config.measurements import our_measurements
from lra_bench.config.schema import Measure
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.profiling.interleave import VISITS, Interleaving, WorkerPool, first_visits
from lra_bench.profiling.scaling import fields, growth
from lra_bench.profiling.sections import FALLBACK, FIXED, LARGEST, add_flops
from lra_bench.profiling.types import MODES, ComparisonModel, Measured, Setting, lengths_of
from lra_bench.progress import ProgressCallback, bar
from lra_bench.records.environment import environment
from lra_bench.runtime.hardware import Hardware

from .ratios import WIDE_SPREAD
from .rows import row_of, summary_of

InferenceState: Any = our_measurements()["state"]

BATCHES: Mapping[str, tuple[int | str, ...]] = {"cpu": (1,), "cuda": (32, 1, LARGEST)}
LIMIT_SECONDS = 50.0
MAX_INTERLEAVED = 12
"""Number of models, including baselines, that are timed interleaved; more models are split into groups."""
FREE_SHARE = 0.9
"""Fraction of the available memory that a step may use on a CPU by default; on CUDA there is no limit."""


@dataclass
class Profile:
    """The results of a comparison, as rows in tidy format.

    ``rows`` has one row per model, batch policy, mode and length, with the fields of a record's speed entry, ratios to
    each baseline, and spreads of times and ratios. ``summaries`` has one row per model, batch policy and mode, with
    growth, geometric means over lengths, and efficiency lengths. Those of inference contain the bytes of the inference
    state and its growth. ``baselines`` maps the keys ``default`` and ``math``
    to the names of exact attention. ``flops`` and ``energy`` have one row per model. Ratios are the model's value
    divided by the baseline's: a speed ratio above one means faster, a memory ratio below one means less memory. An
    ``interrupted`` profile has the rows of the lengths that were measured, and no summaries.
    """

    task: str
    protocol: str
    hardware: str
    lengths: list[int]
    baselines: dict[str, str]
    environment: dict[str, Any]
    ceiling_flops_per_second: float | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    flops: list[dict[str, Any]] = field(default_factory=list)
    energy: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    interrupted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return asdict(self)


def batches_of(measure: Measure, device: str) -> list[int | str]:
    """Return the batches to measure, sizes or ``largest``: those of ``measure``, or the defaults of the device type."""
    if measure.speed_batches is not None:
        return list(dict.fromkeys(measure.speed_batches))
    return [measure.speed_batch_size] if measure.speed_batch_size else list(BATCHES[device])


class Comparison:
    """Comparison of ``candidates``, which include the baselines and share task, protocol and hardware.

    ``refused`` contains names and reasons of models that do not support the task; they are reported as warnings. A mode
    whose timing window would exceed ``limit_seconds`` is not timed.
    """

    def __init__(
        self,
        candidates: Sequence[ComparisonModel],
        spec: TaskSpec,
        hardware: Hardware,
        protocol: str,
        limit_seconds: float = LIMIT_SECONDS,
        refused: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.baselines = [candidate for candidate in candidates if candidate.baseline]
        self.others = [candidate for candidate in candidates if not candidate.baseline]
        self.spec, self.hardware, self.limit_seconds = spec, hardware, limit_seconds
        self.measure = candidates[0].config.measure
        kind = hardware.device.type
        self.batches = batches_of(self.measure, kind)
        if not lengths_of(self.measure, kind):
            raise UserError(
                "measure.speed_lengths=[]: no lengths to measure; set at least one, as in "
                "measure.speed_lengths=[1024,4096]"
            )
        gigabytes, free = self.measure.memory_limit_gigabytes, psutil.virtual_memory().available
        default = int(FREE_SHARE * free) if kind == "cpu" else None
        self.memory_limit = default if gigabytes is None else int(gigabytes * 1e9)
        self._kept: set[tuple[str, str, int | str]] = set()
        self._states: dict[str, Any] = {}
        self.profile = Profile(
            task=spec.name,
            protocol=protocol,
            hardware=hardware.slug,
            lengths=lengths_of(self.measure, kind),
            baselines={str(candidate.baseline): candidate.name for candidate in self.baselines},
            environment=dict(environment(hardware)),
            warnings=[f"{name} is skipped: {reason}" for name, reason in refused],
        )

    def run(self) -> Profile:
        """Measure all groups of models and batch policies.

        ``KeyboardInterrupt`` ends all worker processes; it is raised only if no length has been measured.
        """
        size, lengths = max(1, MAX_INTERLEAVED - len(self.baselines)), self.profile.lengths
        for candidate in (*self.baselines, *self.others):
            if candidate.attention is None:
                self._states[candidate.name] = InferenceState.at_lengths(candidate.config, self.spec, lengths)
        groups = [self.others[start : start + size] for start in range(0, len(self.others), size)] or [[]]
        candidates = len(self.others) + len(groups) * len(self.baselines)
        total = candidates * len(lengths) * len(self.batches) * len(MODES) * VISITS[self.hardware.device.type]
        with bar(total, "Profile", unit="measurements") as advance:
            for group in groups:
                plans = [(FIXED if batch != LARGEST else LARGEST, batch, lengths) for batch in self.batches]
                while plans and not self.profile.interrupted:
                    policy, batch, remaining = plans.pop(0)
                    found = self._lengths([*self.baselines, *group], policy, batch, remaining, advance)
                    has_single = 1 in self.batches or FALLBACK in (plan[0] for plan in plans)
                    too_long = [one.entry["length"] for one in found if one.entry["status"] == "out_of_memory"]
                    if policy == FIXED and not has_single and too_long:
                        plans.append((FALLBACK, 1, [length for length in remaining if length >= min(too_long)]))
                    self._keep(found, (policy, batch))
        if self.profile.interrupted:
            if not self.profile.rows:
                raise KeyboardInterrupt
            self.profile.summaries.clear()
        self._warn()
        return self.profile

    def _lengths(
        self,
        candidates: Sequence[ComparisonModel],
        policy: str,
        batch: int | str,
        lengths: Sequence[int],
        advance: ProgressCallback,
    ) -> list[Measured]:
        """Measure all lengths of one batch policy; a mode that fails at a length is not measured at longer ones.

        ``KeyboardInterrupt`` ends the measurement, and the lengths that were visited are returned.
        """
        interleavings: list[Interleaving] = []
        modes = len(candidates) * len(MODES)
        reported = 0

        def report(done: int, doing: str) -> None:
            nonlocal reported
            reported += done
            advance(done, doing)

        limits = self.limit_seconds, self.memory_limit
        settings = [
            Setting(self.spec, length, batch, policy, self.hardware, *limits, self.measure.flops) for length in lengths
        ]
        with WorkerPool() as processes:
            try:
                for interleaving in first_visits(candidates, settings, processes, report):
                    interleavings.append(interleaving)
                    if interleaving.setting.length == self.profile.lengths[0] and batch == self.batches[0]:
                        self._measure_costs(interleaving, report)
                    report(len(interleavings) * modes - reported, "")
                processes.end_memory_processes()
                for visit in range(1, VISITS[self.hardware.device.type]):
                    for number, interleaving in enumerate(interleavings, start=1):
                        interleaving.revisit()
                        report((visit * len(interleavings) + number) * modes - reported, "")
            except KeyboardInterrupt:
                self.profile.interrupted = True
        for interleaving in interleavings:
            for one in interleaving.found:
                add_flops(one.entry, one.flops_per_row, self.profile.ceiling_flops_per_second)
            known = {row["variant"] for row in self.profile.flops}
            counts = {name: counted for name, counted in interleaving.flops.items() if counted and name not in known}
            self.profile.flops += [{"variant": name, **counted["per_token"]} for name, counted in counts.items()]
        return [one for interleaving in interleavings for one in interleaving.found]

    def _measure_costs(self, interleaving: Interleaving, report: Callable[[int, str], None]) -> None:
        """Measure the matrix-product throughput in the first process, and the energy of each model, once."""
        profile, names = self.profile, list(interleaving.processes.timing)
        if self.measure.flops and names and profile.ceiling_flops_per_second is None:
            report(0, "measuring the fastest matrix product")
            answer = interleaving.answer(names[0], "peak_matmul_flops")
            profile.ceiling_flops_per_second = answer.get("flops_per_second")
        known = {row["variant"] for row in profile.energy}
        for name in (name for name in names if self.measure.energy and name not in known):
            report(0, f"measuring the energy of {name}")
            if energy := interleaving.answer(name, "energy").get("energy"):
                profile.energy.append({"variant": name, **energy})

    def _keep(self, found: Sequence[Measured], plan: tuple[str, int | str]) -> None:
        """Add rows and summaries of one batch policy; if there are several groups, those of the baselines only once."""
        by_key = {
            (str(candidate.baseline), one.entry["mode"], one.entry["length"]): one
            for candidate in self.baselines
            for one in found
            if one.candidate is candidate
        }
        for candidate in dict.fromkeys(one.candidate.name for one in found):
            own = [one for one in found if one.candidate.name == candidate]
            if (candidate, *plan) in self._kept:
                continue
            self._kept.add((candidate, *plan))
            rows = [row_of(one, self.profile.baselines, by_key) for one in own]
            rows.sort(key=lambda row: (MODES.index(row["mode"]), row["length"]))
            state = self._states.get(candidate)
            known = {} if state is None else {each["length"]: each["state_bytes"] for each in state["points"]}
            for row in rows:
                row["state_bytes"] = known.get(row["length"]) if row["mode"] == "inference" else None
            self.profile.rows += rows
            # With the largest batch, the batch size depends on the length, so steps of two lengths are not comparable.
            slopes = growth([one.entry for one in own if one.entry["batch_policy"] != LARGEST])
            fitted = fields("state", None) if state is None else InferenceState.growth(state)
            self.profile.summaries += [
                {
                    **summary_of(several, slopes.get(mode, {}), self.profile.baselines, by_key),
                    **(fitted if mode == "inference" else fields("state", None)),
                }
                for mode in MODES
                if (several := [row for row in rows if row["mode"] == mode])
            ]

    def _warn(self) -> None:
        """Add warnings about an interruption, uncertain ratios and unknown attention kernels."""
        rows = self.profile.rows
        if self.profile.interrupted:
            self.profile.warnings.append("interrupted; it contains only the lengths that were measured before")
        wide = [row for row in rows for key in self.profile.baselines if uncertain(row, key)]
        if wide:
            ratios = sum(row[f"speed_ratio_{key}"] is not None for row in rows for key in self.profile.baselines)
            self.profile.warnings.append(
                f"{len(wide)} of {ratios} speed ratios are uncertain by more than {WIDE_SPREAD:.0%}, because of other "
                "processes or a varying clock frequency; they are marked ~"
            )
        measured = [row for row in rows if row["baseline"] and row["status"] == "ok"]
        for name in sorted({row["variant"] for row in measured if row["attention_backend"] is None}):
            self.profile.warnings.append(
                f"the attention kernel of {name} is unknown, so there are no ratios to this baseline"
            )


def uncertain(row: Mapping[str, Any], key: str) -> bool:
    """Return whether the spread of a row's speed ratio to the baseline ``key`` exceeds ``WIDE_SPREAD``."""
    return (row[f"spread_of_speed_ratio_{key}"] or 0) > WIDE_SPREAD
