"""Describe one record as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lra_bench.config.hashing import HASH_VERSION
from lra_bench.records.points import CurveSummary, Extrapolation
from lra_bench.records.rate_search import RateSearch
from lra_bench.records.schema import Record
from lra_bench.records.sections import AdaptiveDepth, PairPoint, PairScores, SpeedPoint

from .export import row_for
from .runs import missing_data, ratio_name, repeated_data

Facts = Iterator[tuple[str, str]]


def describe(record: Record, width: int | None = None) -> str:
    """Return the leaderboard row of a record, followed by its command, code, data, lengths and costs."""
    return row_for(record, width) + "\n" + lines(_facts(record))


def lines(facts: Iterable[tuple[str, str]]) -> str:
    """Return one line per pair of name and text, with aligned texts."""
    return "".join(f"{f'{name} ':<18}{text}\n" for name, text in facts)


def costs(speed: Sequence[SpeedPoint], growth: Mapping[str, Any], flops: Mapping[str, Any] | None) -> Facts:
    """Yield the FLOPs, the time and memory of a step at each length, and their growth."""
    if flops is not None:
        yield "FLOPs", _plain(flops)
    for entry in speed:
        yield f"{entry['mode']} {entry['length']:,}", _speed(entry)
    for mode, slopes in growth.items():
        if text := _plain({name: value for name, value in slopes.items() if name != "lengths"}):
            yield f"growth, {mode}", text


def curve_summaries(section: Extrapolation) -> Facts:
    """Yield a summary of each curve over length, or one line if all summaries are equal."""
    texts = [_summary(curve) for curve in section["summary"]]
    if len(texts) > 1 and len(set(texts)) == 1:
        yield "curves", f"all {len(texts)}: {texts[0]}"
        return
    for curve, text in zip(section["summary"], texts, strict=True):
        yield "curve", f"{_curve_name(curve)}: {text}"


def _curve_name(place: Mapping[str, Any]) -> str:
    return " · ".join(filter(None, (place["variant"], place["knob"])))


def _summary(curve: CurveSummary) -> str:
    failures = [f"{status} at {', '.join(map(ratio_name, ratios))}" for status, ratios in curve["failures"].items()]
    if curve["effective_ratio"] is None:
        return "; ".join(filter(None, (curve["reason"], *failures)))
    bound = "at least " if curve["effective_ratio_is_lower_bound"] else ""
    area = ""
    if curve["area"] is not None and curve["area_to_ratio"] is not None:
        area = f", area {curve['area']:.3f} to {ratio_name(curve['area_to_ratio'])}"
    return "; ".join((f"effective ratio {bound}{ratio_name(curve['effective_ratio'])}{area}", *failures))


def _facts(record: Record) -> Facts:
    yield "cell", str(record.key)
    if record.hash_version < HASH_VERSION:
        yield "hash", f"hash of version {record.hash_version}: defaults in code were not part of it"
    yield "command", record.command
    yield "measured", f"{record.started_at} to {record.finished_at}, attempt {record.attempt}"
    if record.last_lines:
        yield "last lines", ("\n" + " " * 18).join(record.last_lines)
    yield "code", _plain(record.code_facts)
    if record.data is not None:
        data = record.data
        yield "data", f"{data['task']} {data['version']}, {data['source']}, {_plain(data['rows'])}"
        if missing := missing_data(record):
            yield "missing data", missing
        if repeated := repeated_data(record):
            yield "repeated data", repeated
    if record.protocol_modified:
        yield "modified", ", ".join(record.protocol_modified)
    if record.parameters is not None:
        yield "parameters", _plain(record.parameters)
    if restriction := restricted(record):
        yield "attention", restriction
    if record.training is not None:
        yield "training", _plain(without_take_off(record.training))
    if reached := take_off(record):
        yield "take-off", reached
    if record.search is not None:
        yield from search_facts(record.search)
    for name, score in record.rungs.items():
        yield "rung", f"{name.replace('_', ' ')} {score:.4f}"
    for part in record.slices:
        yield f"by {part['slicing']}", f"{part['label']}: {_score(part)}"
    if record.minimal_pairs is not None:
        for name, pairs in pairs_by_label(record.minimal_pairs):
            chance = "" if pairs["chance"] is None else f", chance {pairs['chance']:.2g}"
            interval = f"[{pairs['low']:.4f}, {pairs['high']:.4f}]"
            yield "minimal pairs", f"{name}: {pairs['score']:.4f} {interval} over {pairs['n']:,} pairs{chance}"
    if record.extrapolation:
        for point in record.extrapolation["points"]:
            yield f"length {point['length']:,}", f"{_curve_name(point)}, {_point(point)}"
        yield from curve_summaries(record.extrapolation)
        if len(record.extrapolation["attempts"]) > 1:
            for attempt in record.extrapolation["attempts"]:
                count = sum(point["attempt"] == attempt["attempt"] for point in record.extrapolation["points"])
                summary = f"{count} points on {attempt['hardware']}, {attempt['measured_at']}"
                yield f"attempt {attempt['attempt']}", summary
    if record.adaptive_depth is not None:
        yield from depth_facts(record.adaptive_depth)
    yield from costs(record.speed, record.growth, record.flops)


def pairs_by_label(found: PairScores) -> Iterator[tuple[str, PairPoint]]:
    """Yield the scores on minimal pairs, of each label and of all, with names such as ``level 2``."""
    yield from ((f"{found['slicing']} {point['label']}", point) for point in found["points"])
    yield "all pairs", found["total"]


def depth_facts(found: AdaptiveDepth) -> Facts:
    """Yield the score and cost at each budget of depth, and the calibrated thresholds."""
    for point in found["points"]:
        value = "" if point["value"] is None else f" {point['value']:g}"
        flops = "" if point["flops_per_token"] is None else f", {number(point['flops_per_token'])} FLOPs per token"
        cost = f"{point['mean_depth']:.2f} of {found['full_depth']} layers{flops}"
        time = f"{1e6 * point['seconds_per_token']:.3g} µs per token"
        differs = f"{point['disagreement']:.1%} other predictions"
        yield f"depth, {point['kind']}{value}", f"{point['score']:.4f} with {cost}, {time}, {differs}"
    for each in found["calibration"]:
        chosen = "no threshold accepted" if each["threshold"] is None else f"threshold {each['threshold']:g}"
        evidence = f"mean loss {each['risk']:.4f} over {each['n']:,} examples, failure {each['failure']:g}"
        yield f"tolerance {each['tolerance']:g}", f"{chosen} ({evidence})"


def search_facts(search: RateSearch) -> Facts:
    """Yield how a learning rate was searched: the choice, the loss of each rate, and rates of parameters with hints."""
    edge = ", at an end of the grid" if search["edge"] else ""
    chosen = "none" if search["chosen_lr"] is None else f"{search['chosen_lr']:g}{edge}"
    seeds = ", ".join(map(str, search["seeds"]))
    yield "searched rate", f"{chosen} (protocol: {search['protocol_lr']:g}; seeds {seeds}; {search['rule']})"
    losses = (
        f"{rate['lr']:g}: {'a trial diverged or failed' if rate['loss'] is None else number(rate['loss'])}"
        for rate in search["rates"]
    )
    yield "validation loss", ", ".join(losses)
    if search["robustness"] is not None:
        yield "rates near best", f"{search['robustness']:.0%} of the grid reach 90 % of the best skill"
    seconds = "" if search["seconds"] is None else f", {number(search['seconds'])} s"
    yield "trials", f"{search['trial_count']}{seconds}"
    if search["hints"]:
        hints = (f"{name} {hint['ratio']:.3g} times ({hint['hint']})" for name, hint in search["hints"].items())
        yield "rates by hint", ", ".join(hints)


def restricted(record: Record) -> str:
    """Describe the length from which the mechanism restricts attention; empty if it is unknown."""
    if record.restriction is None:
        return ""
    length, longest = record.restriction["from_length"], record.restriction["row_length"]
    if length is None:
        return "restricted at no length"
    if length == 0:
        return "restricted at every length"
    return f"restricted from {length:,} tokens; the longest row has {longest:,}"


def take_off(record: Record) -> str:
    """Describe when the training took off, or that it did not; empty if it is unknown."""
    training: Mapping[str, Any] = record.training or {}
    if training.get("takeoff_censored") is None:
        return ""
    if training["takeoff_censored"]:
        return f"not within {number(training['steps'])} steps"
    return f"at step {number(training['takeoff_steps'])}, after {number(training['takeoff_seconds'])} s of training"


def without_take_off(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements of the training that ``take_off`` does not describe."""
    return {name: value for name, value in training.items() if not name.startswith("takeoff_")}


def _plain(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items() if value not in (None, [], ""))


def number(value: Any) -> str:
    """Format a number with separators, floats with four significant digits; return other values as text."""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _point(point: Mapping[str, Any]) -> str:
    if point["score"] is None:
        return f"{point['status']}: {point['reason']}"
    kept = f", keeps {point['retention']:.0%} of the skill" if point["retention"] is not None else ""
    return _score(point) + kept


def _score(point: Mapping[str, Any]) -> str:
    floor = f", {point['floor_name']} floor {point['floor']:.4f}" if point["floor"] is not None else ""
    low, high = point["low"], point["high"]
    interval = f" [{low:.4f}, {high:.4f}]" if low is not None and high is not None else ""
    return f"{point['score']:.4f}{interval} over {point['n']:,} targets{floor}"


def _speed(entry: Mapping[str, Any]) -> str:
    if entry["median_seconds"] is None:
        return f"{entry['status']}: {entry['reason']}"
    memory = entry["peak_allocated_bytes"] or entry["peak_resident_growth_bytes"]
    peak = f", peak {memory / 2**20:,.1f} MiB" if memory else ""
    kernel = f", attention backend {entry['attention_backend']}" if entry["attention_backend"] else ""
    share = f", utilisation {entry['utilisation']:.2g}" if entry["utilisation"] is not None else ""
    step = f"{1e3 * entry['median_seconds']:.2f} ms per step, batch size {entry['batch_size']}, {entry['n']} steps"
    return step + peak + kernel + share
