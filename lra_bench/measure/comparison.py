"""What several models cost at growing lengths, each against exact attention, timed in turns at every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from lra_bench.contracts import TaskSpec, UserError
from lra_bench.hardware import Hardware
from lra_bench.progress import Tell, bar
from lra_bench.records.environment import environment
from lra_bench.records.schema import Growth, SpeedPoint

from .contest import Contest, Entrant, Measured, Setting
from .crossing import crossing
from .entry import FALLBACK, FIXED, LARGEST, add_flops, unmeasured
from .foresee import too_large, too_slow
from .growth import growth, peak_bytes
from .profile import MODES, lengths_of
from .ratios import geometric_mean, ratio
from .speed import spread_of

BATCHES: Mapping[str, tuple[int | str, ...]] = {"cpu": (1,), "cuda": (32, 1, LARGEST)}
LIMIT_SECONDS = 60.0
AT_ONCE = 12
WIDE_SPREAD = 0.05
FREE_SHARE = 0.9


@dataclass
class Profile:
    """What was found, as tidy rows.

    ``rows``: one for every model, batch policy, mode and length, with the fields of a record's speed entry, the spread
    between rounds, and ratios against each baseline. ``summaries``: one for every model, batch policy and mode, with
    growth, geometric means over lengths, and efficiency lengths. ``baselines`` are the names of exact attention by key,
    ``default`` and ``math``. Ratios are cost and speed of the model over those of the baseline: a speed ratio above one
    is faster, a memory ratio below one is less.
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


def batches_of(measure: Mapping[str, Any], device: str) -> list[int | str]:
    """The batches to measure, sizes or ``largest``: those of the configuration, or the device's."""
    if measure["speed_batches"] is not None:
        asked = list(dict.fromkeys(measure["speed_batches"]))
    else:
        asked = [measure["speed_batch_size"]] if measure["speed_batch_size"] else list(BATCHES[device])
    for batch in asked:
        if batch != LARGEST and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise UserError(f"measure.speed_batches={batch}: give whole numbers from 1 on, or {LARGEST}")
    return asked


class Comparison:
    """Measures ``entrants``, baselines among them, that share task, protocol and hardware."""

    def __init__(
        self,
        entrants: Sequence[Entrant],
        spec: TaskSpec,
        hardware: Hardware,
        protocol: str,
        limit_seconds: float = LIMIT_SECONDS,
        refused: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.baselines = [entrant for entrant in entrants if entrant.baseline]
        self.others = [entrant for entrant in entrants if not entrant.baseline]
        self.spec, self.hardware, self.limit_seconds = spec, hardware, limit_seconds
        config = entrants[0].config
        self.measure = config["measure"]
        kind = hardware.device.type
        self.batches = batches_of(self.measure, kind)
        if not lengths_of(config, kind):
            raise UserError("measure.speed_lengths=[]: name at least one length, as measure.speed_lengths=[1024,4096]")
        self.memory_limit = _memory_limit(self.measure, kind)
        self.profile = Profile(
            task=spec.name,
            protocol=protocol,
            hardware=hardware.slug,
            lengths=lengths_of(config, kind),
            baselines={str(entrant.baseline): entrant.name for entrant in self.baselines},
            environment=dict(environment(hardware)),
            warnings=[f"{name} is left out: {reason}" for name, reason in refused],
        )

    def run(self) -> Profile:
        """Measure everything; Ctrl-C ends all processes."""
        size = max(1, AT_ONCE - len(self.baselines))
        groups = [self.others[start : start + size] for start in range(0, len(self.others), size)] or [[]]
        lengths = self.profile.lengths
        entrants = len(self.others) + len(groups) * len(self.baselines)
        total = entrants * len(lengths) * len(self.batches) * len(MODES)
        with bar(total, "Profile", unit="measurements") as advance:
            for number, group in enumerate(groups):
                plans = [(FIXED if batch != LARGEST else LARGEST, batch, lengths) for batch in self.batches]
                while plans:
                    policy, batch, remaining = plans.pop(0)
                    found = self._lengths([*self.baselines, *group], policy, batch, remaining, advance)
                    if policy == FIXED and 1 not in self.batches and (first := _first_full(found)):
                        plans.append((FALLBACK, 1, [length for length in remaining if length >= first]))
                    self._keep(found, baselines=number == 0)
        self._warn()
        return self.profile

    def _lengths(
        self, entrants: Sequence[Entrant], policy: str, batch: int | str, lengths: Sequence[int], advance: Tell
    ) -> list[Measured]:
        """All lengths of one batch policy; a mode of an entrant ends at the first length that it cannot do."""
        found: list[Measured] = []
        modes: dict[str, list[str]] = {entrant.name: list(MODES) for entrant in entrants}
        for length in lengths:
            foreseen = [
                Measured(entrant, unmeasured(mode, length, 1 if batch == LARGEST else int(batch), *why, policy))
                for entrant in entrants
                for mode in modes[entrant.name]
                if (why := self._foresee(_entries(found, entrant), mode, length))
            ]
            for one in foreseen:
                modes[one.entrant.name].remove(one.entry["mode"])
            told = 0

            def tell(done: int, doing: str) -> None:
                nonlocal told
                told += done
                advance(done, doing)

            with Contest(self._setting(length, policy, batch), tell) as contest:
                measured = contest.run(entrants, modes)
            self._take(contest, measured)
            found += foreseen + measured
            modes = {
                entrant.name: [
                    one.entry["mode"] for one in measured if one.entrant is entrant and one.entry["status"] == "ok"
                ]
                for entrant in entrants
            }
            advance(len(entrants) * len(MODES) - told, "")
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
            flops=self.measure["flops"],
            energy=self.measure["energy"] and length == self.profile.lengths[0] and batch == self.batches[0],
            ceiling=self.measure["flops"] and begins,
        )

    def _foresee(self, entries: Sequence[SpeedPoint], mode: str, length: int) -> tuple[str, str] | None:
        """Status and reason where a length need not be tried."""
        if slow := too_slow(entries, mode, length, self.hardware.device, self.limit_seconds):
            return "timeout", slow
        if self.hardware.device.type == "cpu" and (large := too_large(entries, mode, length, self.memory_limit)):
            return "out_of_memory", large
        return None

    def _take(self, contest: Contest, measured: Sequence[Measured]) -> None:
        """What a contest found beside its entries, and FLOPs into these."""
        self.profile.ceiling_flops_per_second = contest.ceiling or self.profile.ceiling_flops_per_second
        for one in measured:
            rows = one.entry["batch_size"]
            flops = None if one.flops_per_row is None else rows * one.flops_per_row
            add_flops(one.entry, flops, self.profile.ceiling_flops_per_second)
        known = {entry["variant"] for entry in self.profile.flops}
        for name, counted in contest.flops.items():
            if counted and name not in known:
                route = {"route": counted["route"], "uncounted": counted["uncounted"]}
                tokens = {
                    f"per_token_{word}": None if counted[mode] is None else counted[mode] / contest.setting.length
                    for word, mode in (("forward", "inference"), ("training", "train"))
                }
                self.profile.flops.append({"variant": name, "length": contest.setting.length, **tokens, **route})
        self.profile.energy += [{"variant": name, **found} for name, found in contest.energy.items()]

    def _keep(self, found: Sequence[Measured], baselines: bool) -> None:
        """Rows and summaries of one batch policy; those of the baselines only once, however many groups there are."""
        by_key = {
            (entrant.baseline, one.entry["mode"], one.entry["length"]): one.entry
            for entrant in self.baselines
            for one in found
            if one.entrant is entrant
        }
        for entrant in dict.fromkeys(one.entrant.name for one in found):
            own = [one for one in found if one.entrant.name == entrant]
            if own[0].entrant.baseline and not baselines:
                continue
            rows = [self._row(one, by_key) for one in own]
            rows.sort(key=lambda row: (MODES.index(row["mode"]), row["length"]))
            self.profile.rows += rows
            # Where the batch follows the length, steps of two lengths do not compare.
            slopes = growth([one.entry for one in own if one.entry["batch_policy"] != LARGEST])
            self.profile.summaries += [
                self._summary(several, slopes.get(mode, {}), by_key)
                for mode in MODES
                if (several := [row for row in rows if row["mode"] == mode])
            ]

    def _row(self, one: Measured, baselines: Mapping[Any, SpeedPoint]) -> dict[str, Any]:
        entry, entrant = one.entry, one.entrant
        seconds = entry["median_seconds"]
        row: dict[str, Any] = {
            "variant": entrant.name,
            "model": entrant.model,
            "baseline": entrant.baseline,
            **entry,
            "steps_per_second": None if seconds is None else 1 / seconds,
            "peak_bytes": peak_bytes(entry),
            "round_medians_seconds": one.round_medians,
            "spread_of_rounds": spread_of(one.round_medians),
            "batch_stopped_by": one.stopped_by,
        }
        for key in self.profile.baselines:
            other = baselines.get((key, entry["mode"], entry["length"]))
            # Without the name of what ran, a ratio would say nothing.
            named = other is not None and other["attention_backend"] is not None
            backend = other["attention_backend"] if other is not None else None
            row[f"{key}_backend"] = backend
            row[f"{key}_status"] = other["status"] if other is not None else None
            known = other if named else None
            weighed = known if known is not None and known["batch_size"] == entry["batch_size"] else None
            row[f"speed_ratio_{key}"] = ratio(entry["tokens_per_second"], known and known["tokens_per_second"])
            row[f"memory_ratio_{key}"] = ratio(row["peak_bytes"], weighed and peak_bytes(weighed))
        return row

    def _summary(
        self, rows: Sequence[Mapping[str, Any]], slopes: Mapping[str, Any], baselines: Mapping[Any, SpeedPoint]
    ) -> dict[str, Any]:
        first = rows[0]
        summary: dict[str, Any] = {
            **{name: first[name] for name in ("variant", "model", "baseline", "mode", "batch_policy")},
            **(slopes or dict.fromkeys(Growth.__annotations__)),
        }
        times = {row["length"]: row["tokens_per_second"] and 1 / row["tokens_per_second"] for row in rows}
        largest = first["batch_policy"] == LARGEST
        peaks = {} if largest else {row["length"]: row["peak_bytes"] for row in rows}
        for key in self.profile.baselines:
            entries = [entry for (name, mode, _), entry in baselines.items() if (name, mode) == (key, first["mode"])]
            other_times = {
                entry["length"]: entry["tokens_per_second"] and 1 / entry["tokens_per_second"] for entry in entries
            }
            other_peaks = {entry["length"]: peak_bytes(entry) for entry in entries}
            summary |= {
                f"speed_ratio_{key}": geometric_mean(row[f"speed_ratio_{key}"] for row in rows),
                f"memory_ratio_{key}": geometric_mean(row[f"memory_ratio_{key}"] for row in rows),
                f"time_crossing_{key}": crossing(times, other_times).as_dict(),
                f"memory_crossing_{key}": crossing(peaks, other_peaks).as_dict(),
            }
        return summary

    def _warn(self) -> None:
        """What a reader of the ratios should know."""
        rows = self.profile.rows
        wide = [row for row in rows if (row["spread_of_rounds"] or 0) > WIDE_SPREAD]
        if wide:
            worst = max(wide, key=lambda row: row["spread_of_rounds"])
            self.profile.warnings.append(
                f"rounds differ by more than {WIDE_SPREAD:.0%} in {len(wide)} of "
                f"{sum(row['status'] == 'ok' for row in rows)} measurements, most in {worst['mode']} of "
                f"{worst['variant']} at {worst['length']:,} tokens ({worst['spread_of_rounds']:.0%}): "
                "other work or a changing clock; marked ~"
            )
        unnamed = sorted({row["variant"] for row in rows if row["baseline"] and _nameless(row)})
        for name in unnamed:
            self.profile.warnings.append(
                f"the kernel by which {name} computed attention was not seen, so it gives no ratios"
            )


def _nameless(row: Mapping[str, Any]) -> bool:
    return row["status"] == "ok" and row["attention_backend"] is None


def _entries(found: Sequence[Measured], entrant: Entrant) -> list[SpeedPoint]:
    return [one.entry for one in found if one.entrant is entrant]


def _first_full(found: Sequence[Measured]) -> int | None:
    """The shortest length at which memory ran out."""
    return min((one.entry["length"] for one in found if one.entry["status"] == "out_of_memory"), default=None)


def _memory_limit(measure: Mapping[str, Any], device: str) -> int | None:
    """Bytes that a step may take: those of the configuration; on a CPU else most of what is free, on CUDA no limit."""
    if measure["memory_limit_gigabytes"] is not None:
        return int(measure["memory_limit_gigabytes"] * 1e9)
    return int(FREE_SHARE * psutil.virtual_memory().available) if device == "cpu" else None
