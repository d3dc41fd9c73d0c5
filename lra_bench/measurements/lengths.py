"""Length extrapolation: scores of a trained model at other lengths, in other contexts and with evaluation options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lra_bench.contracts.measurement import Column, Display, Measurement, Points
from lra_bench.options.declaration import AT_LEAST_ONE, POSITIVE, option

from .points import CurveSummary, Extrapolation, ExtrapolationPoint
from .slices import score_text

if TYPE_CHECKING:
    from .subject import Context, Subject


class Lengths(Measurement):
    """Scores at other lengths; in language modelling, in other contexts."""

    name = "extrapolation"
    stage = "evaluating other lengths"
    needs = ("model", "test")
    Result = Extrapolation
    columns = (
        Column(
            name="score_<ratio>",
            help="score on examples of this multiple of the training length, in {unit}",
            source="score",
            seeds="mean",
            display=Display(
                "{part}",
                page_heading="{times}",
                cell=lambda row, context: None if (status := row[f"status_{context.part}"]) == "ok" else status or "",
                first="best",
                scale=True,
            ),
        ),
        Column(
            name="floor_<ratio>",
            help="score of the floor (baseline without a model) that is strongest on examples of this multiple of the "
            "training length",
            source="floor",
            seeds="mean",
        ),
        Column(
            name="clears_floor_<ratio>",
            help="whether the score of any seed exceeds the floor at this multiple of the training length by more than "
            "its interval",
            run=lambda run, point: run.clears_floor_at(point),
            seeds="largest",
        ),
        Column(
            name="skill_<ratio>",
            help="skill on examples of this multiple of the training length: score normalised so that the strongest "
            "floor other than a random rule is 0 and a perfect score is 1",
            run=lambda run, point: run.skill(point["score"], point["floors"] or {point["floor_name"]: point["floor"]}),
            seeds="mean",
        ),
        Column(
            name="status_<ratio>",
            help="ok, or the status that explains why there is no score at this multiple of the training length",
            source="status",
        ),
        Column(
            name="area<curve>",
            help="skill at longer lengths divided by skill at the training length, averaged over the logarithm of the "
            "length",
            source="area",
            seeds="mean",
        ),
        Column(
            name="effective_ratio<curve>",
            help="largest multiple of the training length up to which at least half of the skill at the training "
            "length is kept",
            source="effective_ratio",
            seeds="mean",
        ),
    )
    figures = (
        "lra_bench.figures.lengths:extrapolation",
        "lra_bench.figures.lengths:evaluation_knobs",
        "lra_bench.figures.losses:loss_by_position",
        "lra_bench.figures.lengths:score_vs_length",
    )
    logged = ("extrapolation", "evaluation_knobs", "loss_by_position")
    points = (
        Points(
            name="lengths",
            path="extrapolation/points",
            of=lambda section: section["points"],
            columns={
                "length_variant": "method by which examples of this length were generated, or their context was "
                "provided",
                "knob": "model option that was set for this evaluation only, as option=value; empty if none",
                "ratio": "length divided by the training length",
                "length": "length of the longest example, tokens",
                "status": "ok, or the status that explains why there is no score",
                "reason": "reason for the status in words",
                "metric": "accuracy (between 0 and 1) or bits_per_character",
                "score": "score on examples of this length",
                "low": "lower end of the 95 % confidence interval of the score over examples",
                "high": "upper end of the 95 % confidence interval of the score over examples",
                "n": "number of scored targets",
                "floor_name": "name of the floor (baseline without a model) that the score is compared with",
                "floor": "score of the floor on the same examples",
                "skill": "score normalised so that the floor is 0 and a perfect score is 1",
            },
            curve=lambda point: (point["variant"], point["knob"]),
            at=lambda point: ratio_name(point["ratio"]),
            numbers=("status", "score", "skill", "retention"),
            charts={"score_over_length": ("score", "score on other lengths")},
        ),
        Points(
            path="extrapolation/summary",
            of=lambda section: section["summary"],
            curve=lambda curve: (curve["variant"], curve["knob"]),
            numbers=("train_skill", "area", "area_to_ratio", "effective_ratio", "effective_ratio_is_lower_bound"),
        ),
    )

    @dataclass
    class Options:
        """Options of the evaluation at other lengths.

        Attributes:
            extrapolation_ratios: Lengths divided by the training length.
            extrapolation_variants: Variants of longer inputs; null means all that the task defines.
            extrapolation_knobs: Options that the model declares as changeable for evaluation only (such as
                ``position.scaling=yarn``); null means all, ``[]`` means none.
            extrapolation_tokens: In language modelling, the number of tokens of the test split on which all contexts
                are scored, rounded to multiples of the longest context.
        """

        extrapolation_ratios: list[float] = option(lambda: [0.5, 1.0, 2.0, 4.0, 8.0], POSITIVE)
        extrapolation_variants: list[str] | None = None
        extrapolation_knobs: list[str] | None = None
        extrapolation_tokens: int = option(1_000_000, AT_LEAST_ONE)

    def check(self, subject: Subject) -> None:
        """Raise ``UserError`` if requested variants or knobs do not exist."""
        from .extrapolation import check_options

        check_options(subject.model, subject.task, subject.config.measure)

    def measure(self, subject: Subject, context: Context) -> Extrapolation:
        """Evaluate the model at every length, and add the evaluations to ``context.evaluations``."""
        from .extrapolation import extrapolate
        from .length_curves import section

        spec = subject.task.spec
        found = extrapolate(
            *(subject.model, subject.task, subject.config.measure, context.hardware, subject.test),
            attempt=context.attempt,
            known_score=subject.own_score,
        )
        context.evaluations.update(found.evaluations)
        return section(spec.train_length, found.points, found.by_position, [context.described()], spec.higher_is_better)

    @classmethod
    def facts(cls, section: Extrapolation) -> Iterator[tuple[str, str]]:
        """Yield the score at every length, a summary of each curve, and the attempts if there are several."""
        for point in section["points"]:
            yield f"length {point['length']:,}", f"{_curve_name(point)}, {_point(point)}"
        yield from curve_summaries(section)
        for attempt in section["attempts"] if len(section["attempts"]) > 1 else ():
            count = sum(point["attempt"] == attempt["attempt"] for point in section["points"])
            summary = f"{count} points on {attempt['hardware']}, {attempt['measured_at']}"
            yield f"attempt {attempt['attempt']}", summary


def ratio_name(ratio: float, variant: str | None = None) -> str:
    """Return the name of a length ratio in columns: ``2x``, or ``2x_filler`` for a variant that is not the first."""
    return f"{ratio:g}x" + (f"_{variant}" if variant else "")


def length_points(section: Extrapolation | None) -> dict[str, ExtrapolationPoint]:
    """Return the points by their ``ratio_name``, without those of evaluation options."""
    points = [point for point in section["points"] if not point["knob"]] if section else []
    return {
        ratio_name(point["ratio"], None if point["variant"] == points[0]["variant"] else point["variant"]): point
        for point in points
    }


def plain_curves(section: Extrapolation | None) -> dict[str, CurveSummary]:
    """Return the summaries of the curves by the suffix of their columns, without those of evaluation options."""
    plain = [curve for curve in section["summary"] if not curve["knob"]] if section else []
    return {f"_{curve['variant']}" if number else "": curve for number, curve in enumerate(plain)}


def curve_summaries(section: Extrapolation) -> Iterator[tuple[str, str]]:
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


def _point(point: Mapping[str, Any]) -> str:
    if point["score"] is None:
        return f"{point['status']}: {point['reason']}"
    kept = f", keeps {point['retention']:.0%} of the skill" if point["retention"] is not None else ""
    parts = [f", {label} {value:.4f}" for part in point.get("parts", {}).values() for label, value in part.items()]
    return score_text(point) + kept + "".join(parts)
