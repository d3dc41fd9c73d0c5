"""What several models cost at growing lengths, each against exact attention, timed in turns at every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from lra_bench.config.schema import Measure
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.profiling.profile import MODES, lengths_of
from lra_bench.profiling.scaling import growth, too_large, too_slow
from lra_bench.profiling.speed_point import FALLBACK, FIXED, LARGEST, add_flops, unmeasured
from lra_bench.profiling.worker_pool import WorkerPool
from lra_bench.progress import Tell, bar
from lra_bench.records.environment import environment
from lra_bench.records.sections import SpeedPoint
from lra_bench.runtime.hardware import Hardware

from .interleave import VISITS, Interleaving
from .ratios import ratio
from .rows import row_of, summary_of
from .types import ComparisonModel, Measured, Setting

BATCHES: Mapping[str, tuple[int | str, ...]] = {"cpu": (1,), "cuda": (32, 1, LARGEST)}
LIMIT_SECONDS = 50.0
AT_ONCE = 12
WIDE_SPREAD = 0.05
FREE_SHARE = 0.9


@dataclass
class Profile:
    """What was found, as tidy rows.

    ``rows``: one for every model, batch policy, mode and length, with the fields of a record's speed entry, ratios
    against each baseline, and spreads of seconds and ratios. ``summaries``: one for every model, batch policy and mode,
    with growth, geometric means over lengths, and efficiency lengths. ``baselines`` are the names of exact attention by
    key, ``default`` and ``math``. Ratios are those of the model's cost and speed to the baseline's: a speed ratio above
    one is faster, a memory ratio below one is less.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def batches_of(measure: Measure, device: str) -> list[int | str]:
    """The batches to measure, sizes or ``largest``: those of the configuration, or the device's."""
    if measure.speed_batches is not None:
        asked = list(dict.fromkeys(measure.speed_batches))
    else:
        asked = [measure.speed_batch_size] if measure.speed_batch_size else list(BATCHES[device])
    for batch in asked:
        if batch != LARGEST and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise UserError(f"measure.speed_batches={batch}: give whole numbers from 1 on, or {LARGEST}")
    return asked


class Comparison:
    """Measures ``candidates``, baselines among them, that share task, protocol and hardware."""

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
            raise UserError("measure.speed_lengths=[]: name at least one length, as measure.speed_lengths=[1024,4096]")
        self.memory_limit = _memory_limit(self.measure, kind)
        self._kept: set[tuple[str, str, int | str]] = set()
        self.profile = Profile(
            task=spec.name,
            protocol=protocol,
            hardware=hardware.slug,
            lengths=lengths_of(self.measure, kind),
            baselines={str(candidate.baseline): candidate.name for candidate in self.baselines},
            environment=dict(environment(hardware)),
            warnings=[f"{name} is left out: {reason}" for name, reason in refused],
        )

    def run(self) -> Profile:
        """Measure everything; Ctrl-C ends all processes."""
        size = max(1, AT_ONCE - len(self.baselines))
        groups = [self.others[start : start + size] for start in range(0, len(self.others), size)] or [[]]
        lengths = self.profile.lengths
        candidates = len(self.others) + len(groups) * len(self.baselines)
        total = candidates * len(lengths) * len(self.batches) * len(MODES) * VISITS[self.hardware.device.type]
        with bar(total, "Profile", unit="measurements") as advance:
            for group in groups:
                plans = [(FIXED if batch != LARGEST else LARGEST, batch, lengths) for batch in self.batches]
                while plans:
                    policy, batch, remaining = plans.pop(0)
                    found = self._lengths([*self.baselines, *group], policy, batch, remaining, advance)
                    alone = 1 in self.batches or FALLBACK in (plan[0] for plan in plans)
                    if policy == FIXED and not alone and (first := _first_full(found)):
                        plans.append((FALLBACK, 1, [length for length in remaining if length >= first]))
                    self._keep(found, (policy, batch))
        self._warn()
        return self.profile

    def _lengths(
        self,
        candidates: Sequence[ComparisonModel],
        policy: str,
        batch: int | str,
        lengths: Sequence[int],
        advance: Tell,
    ) -> list[Measured]:
        """All lengths of one batch policy; a mode of a model ends at the first length that it cannot do."""
        found: list[Measured] = []
        interleavings: list[Interleaving] = []
        told = 0

        def tell(done: int, doing: str) -> None:
            nonlocal told
            told += done
            advance(done, doing)

        modes: dict[str, list[str]] = {candidate.name: list(MODES) for candidate in candidates}
        with WorkerPool() as processes:
            for length in lengths:
                foreseen = [
                    Measured(candidate, unmeasured(mode, length, 1 if batch == LARGEST else int(batch), *why, policy))
                    for candidate in candidates
                    for mode in modes[candidate.name]
                    if (why := self._foresee(_entries(found, candidate), mode, length))
                ]
                for one in foreseen:
                    modes[one.candidate.name].remove(one.entry["mode"])
                interleaving = Interleaving(self._setting(length, policy, batch), processes, tell)
                measured = interleaving.run(candidates, modes)
                interleavings.append(interleaving)
                found += foreseen + measured
                modes = {
                    candidate.name: [
                        one.entry["mode"]
                        for one in measured
                        if one.candidate is candidate and one.entry["status"] == "ok"
                    ]
                    for candidate in candidates
                }
                tell(len(interleavings) * len(candidates) * len(MODES) - told, "")
            processes.end_memory_processes()
            for visit in range(1, VISITS[self.hardware.device.type]):
                for number, interleaving in enumerate(interleavings, start=1):
                    interleaving.again()
                    tell((visit * len(interleavings) + number) * len(candidates) * len(MODES) - told, "")
        for interleaving in interleavings:
            self._take(interleaving)
        return found

    def _setting(self, length: int, policy: str, batch: int | str) -> Setting:
        begins = not self.profile.rows and length == self.profile.lengths[0] and policy != FALLBACK
        return Setting(
            spec=self.spec,
            length=length,
            batch=batch,
            policy=policy,
            hardware=self.hardware,
            limit_seconds=self.limit_seconds,
            memory_limit_bytes=self.memory_limit,
            flops=self.measure.flops,
            energy=self.measure.energy and length == self.profile.lengths[0] and batch == self.batches[0],
            peak_matmul_flops=self.measure.flops and begins,
        )

    def _foresee(self, entries: Sequence[SpeedPoint], mode: str, length: int) -> tuple[str, str] | None:
        """Status and reason where a length need not be tried."""
        if slow := too_slow(entries, mode, length, self.hardware.device, self.limit_seconds):
            return "timeout", slow
        if self.hardware.device.type == "cpu" and (large := too_large(entries, mode, length, self.memory_limit)):
            return "out_of_memory", large
        return None

    def _take(self, interleaving: Interleaving) -> None:
        """Store FLOPs, energy and the peak of matrix products, and add FLOPs to each speed entry."""
        self.profile.ceiling_flops_per_second = interleaving.peak_matmul_flops or self.profile.ceiling_flops_per_second
        for one in interleaving.found:
            flops = None if one.flops_per_row is None else one.entry["batch_size"] * one.flops_per_row
            add_flops(one.entry, flops, self.profile.ceiling_flops_per_second)
        for section, found in (("flops", self._per_token(interleaving)), ("energy", interleaving.energy)):
            rows: list[dict[str, Any]] = getattr(self.profile, section)
            known = {row["variant"] for row in rows}
            rows += [{"variant": name, **figures} for name, figures in found.items() if name not in known]

    def _per_token(self, interleaving: Interleaving) -> dict[str, dict[str, Any]]:
        """FLOPs per token of each model at the measured length, with the counting route."""
        length = interleaving.setting.length
        tokens = length * (2 if self.spec.kind == "matching" else 1)
        return {
            name: {
                "length": length,
                "per_token_forward": ratio(counted["inference"], tokens),
                "per_token_training": ratio(counted["train"], tokens),
                "route": counted["route"],
                "uncounted": counted["uncounted"],
            }
            for name, counted in interleaving.flops.items()
            if counted
        }

    def _keep(self, found: Sequence[Measured], plan: tuple[str, int | str]) -> None:
        """Rows and summaries of one batch policy; those of the baselines only once, however many groups there are."""
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
            self.profile.rows += rows
            # Where the batch follows the length, steps of two lengths do not compare.
            slopes = growth([one.entry for one in own if one.entry["batch_policy"] != LARGEST])
            self.profile.summaries += [
                summary_of(several, slopes.get(mode, {}), self.profile.baselines, by_key)
                for mode in MODES
                if (several := [row for row in rows if row["mode"] == mode])
            ]

    def _warn(self) -> None:
        """What a reader of the ratios should know."""
        rows = self.profile.rows
        wide = [row for row in rows for key in self.profile.baselines if uncertain(row, key)]
        if wide:
            ratios = sum(row[f"speed_ratio_{key}"] is not None for row in rows for key in self.profile.baselines)
            self.profile.warnings.append(
                f"{len(wide)} of {ratios} ratios of speeds are known no better than to {WIDE_SPREAD:.0%}: "
                "other work or a changing clock; marked ~"
            )
        unnamed = sorted({row["variant"] for row in rows if row["baseline"] and _nameless(row)})
        for name in unnamed:
            self.profile.warnings.append(
                f"the kernel by which {name} computed attention was not seen, so it gives no ratios"
            )


def uncertain(row: Mapping[str, Any], key: str) -> bool:
    """Whether the ratio of speeds of a profile's row against the baseline ``key`` is worth a warning."""
    return (row[f"spread_of_speed_ratio_{key}"] or 0) > WIDE_SPREAD


def _nameless(row: Mapping[str, Any]) -> bool:
    return row["status"] == "ok" and row["attention_backend"] is None


def _entries(found: Sequence[Measured], candidate: ComparisonModel) -> list[SpeedPoint]:
    return [one.entry for one in found if one.candidate is candidate]


def _first_full(found: Sequence[Measured]) -> int | None:
    """The shortest length at which memory ran out."""
    return min((one.entry["length"] for one in found if one.entry["status"] == "out_of_memory"), default=None)


def _memory_limit(measure: Measure, device: str) -> int | None:
    """Bytes that a step may take: those of the configuration; on a CPU else most of what is free, on CUDA no limit."""
    if measure.memory_limit_gigabytes is not None:
        return int(measure.memory_limit_gigabytes * 1e9)
    return int(FREE_SHARE * psutil.virtual_memory().available) if device == "cpu" else None
