"""Adaptive depth: score, average depth, FLOPs and time of one trained model at several budgets of depth."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, cast

from lra_bench.contracts import NOT_SCORED, Batch, DepthBudget, DepthController, Output, Slicing
from lra_bench.contracts.measurement import Measurement, number

from .points import Scored

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from lra_bench.data.batches import Rows
    from lra_bench.runtime.hardware import Hardware
    from lra_bench.training.evaluation import Evaluation

    from .subject import Context, Subject

MOST_ROWS = 1000
"""Largest number of test examples with one target; they are evenly spread over the split."""
LANGUAGE_TOKENS = 50_000
"""Number of scored tokens of language modelling, from the beginning of the test split."""
TIMED_BATCHES = 3
"""Number of batches, of short to long examples, whose time and FLOPs are measured."""
ROUNDS = 3
"""Number of times that each of them is timed, interleaved with the other budgets."""


class Budget(TypedDict):
    """A budget of depth.

    Attributes:
        kind: ``trained`` (the rule of the training), ``layers`` (an exit at a layer), ``steps`` (a largest number of
            steps of a shared block), ``threshold`` (an exit at a confidence) or ``calibrated`` (an exit at the
            confidence calibrated for a tolerance).
        value: Number of layers or steps, threshold or tolerance; None for ``trained``.
    """

    kind: str
    value: float | None


class DepthPoint(Budget, Scored):
    """The test result of a model at one budget of depth.

    Attributes:
        mean_depth: Mean number of layers that a scored target passes through.
        disagreement: Fraction of the targets whose prediction differs from that of the tested model.
        flops_per_token: FLOPs per token that a forward pass executes, those of exit decisions included.
        seconds_per_token: Time of a forward pass per token.
    """

    mean_depth: float
    disagreement: float
    flops_per_token: float | None
    seconds_per_token: float


class DepthSlice(TypedDict):
    """Mean depth, its standard deviation, and accuracy of ``n`` targets: those of one label of a slicing."""

    slicing: str
    label: str
    n: int
    mean_depth: float
    deviation: float
    score: float


class DepthCalibration(TypedDict):
    """A threshold calibrated on ``n`` validation examples, with the mean loss ``risk``.

    The expected loss is at most ``tolerance``, except with the probability ``failure``. ``threshold`` is None if none
    was accepted.
    """

    tolerance: float
    failure: float
    threshold: float | None
    risk: float
    n: int


class AdaptiveDepth(TypedDict):
    """Test results of one trained model at several budgets of depth.

    Attributes:
        full_depth: Largest number of layers that a token passes through in training.
        adapts_by: What has a depth of its own, ``token`` or ``example``.
        points: Results by budget.
        sliced: Budget of ``slices``, None if there are none.
        slices: Depth by slice of the targets.
        calibration: Calibrated thresholds, one for each tolerance.
        attempt: Number of the attempt that measured them.
    """

    full_depth: int
    adapts_by: str
    points: list[DepthPoint]
    sliced: Budget | None
    slices: list[DepthSlice]
    calibration: list[DepthCalibration]
    attempt: int


class DepthBudgets(Measurement):
    """Test results of a model that adapts its depth, at several budgets."""

    name = "adaptive_depth"
    stage = "evaluating budgets of depth"
    Result = AdaptiveDepth
    figures = ("lra_bench.figures.slices:score_vs_depth", "lra_bench.figures.slices:depth_by_slice")

    def measure(self, subject: Subject, context: Context) -> AdaptiveDepth | None:
        """Evaluate the model on the test split at every budget of its depth controller, None if it has none."""
        import numpy as np

        from lra_bench.data.batches import Rows

        from .extrapolation import scores

        model, task, options = subject.model, subject.task, subject.config.measure
        controller = next((module for module in model.modules() if isinstance(module, DepthController)), None)
        if controller is None:
            return None
        dataset, chosen = task.split("test"), None
        if not task.spec.per_token and len(dataset) > MOST_ROWS:
            chosen = np.linspace(0, len(dataset) - 1, MOST_ROWS).round().astype(np.int64)
            dataset = dataset.select(chosen)
        rows = Rows(dataset, task.spec)
        measuring = _Measuring(model, controller, rows, context.hardware, context.batch_size)
        budgets = controller.depth_budgets()
        full = measuring.evaluate(None)
        found = {budget: measuring.evaluate(budget) for budget in budgets}
        batches = measuring.timed_batches()
        seconds = measuring.seconds_per_token(budgets, batches)
        points: list[DepthPoint] = [
            {
                "kind": budget.kind,
                "value": budget.value,
                **scores(depths.result, task.spec),
                "mean_depth": float(depths.depth.mean()),
                "disagreement": float((depths.prediction != full.prediction).mean()),
                "flops_per_token": measuring.flops_per_token(budget, batches) if options.flops else None,
                "seconds_per_token": seconds[budget],
            }
            for budget, depths in found.items()
        ]
        means = {budget: float(each.depth.mean()) for budget, each in found.items()}
        sliced = representative(means, controller.full_depth)
        slicings = dict(task.slices("test")) if sliced is not None else {}
        return {
            "full_depth": controller.full_depth,
            "adapts_by": controller.adapts_by,
            "points": points,
            "sliced": {"kind": sliced.kind, "value": sliced.value} if sliced is not None and slicings else None,
            "slices": _slices(slicings, chosen, found[sliced]) if sliced is not None else [],
            "calibration": [cast(DepthCalibration, each._asdict()) for each in controller.calibration()],
            "attempt": context.attempt,
        }

    @classmethod
    def facts(cls, section: AdaptiveDepth) -> Iterator[tuple[str, str]]:
        """Yield the score and cost at each budget of depth, and the calibrated thresholds."""
        for point in section["points"]:
            value = "" if point["value"] is None else f" {point['value']:g}"
            flops = "" if point["flops_per_token"] is None else f", {number(point['flops_per_token'])} FLOPs per token"
            cost = f"{point['mean_depth']:.2f} of {section['full_depth']} layers{flops}"
            time = f"{1e6 * point['seconds_per_token']:.3g} µs per token"
            differs = f"{point['disagreement']:.1%} other predictions"
            yield f"depth, {point['kind']}{value}", f"{point['score']:.4f} with {cost}, {time}, {differs}"
        for each in section["calibration"]:
            chosen = "no threshold accepted" if each["threshold"] is None else f"threshold {each['threshold']:g}"
            evidence = f"mean loss {each['risk']:.4f} over {each['n']:,} examples, failure {each['failure']:g}"
            yield f"tolerance {each['tolerance']:g}", f"{chosen} ({evidence})"


@dataclass(frozen=True)
class Depths:
    """Results by scored target (T,), in the order of rows and positions: depth, prediction, and whether it is correct.

    ``result`` is the evaluation that they belong to.
    """

    result: Evaluation
    depth: NDArray[np.float64]
    prediction: NDArray[np.int64]
    correct: NDArray[np.bool_]


def representative(depths: Mapping[DepthBudget, float], full_depth: int) -> DepthBudget | None:
    """Return the budget whose depths are stored by slice, from the mean depth at each budget.

    It is the rule of the training; otherwise, of the thresholds, the one whose mean depth is closest to half of all
    layers. None if there is neither.
    """
    trained = [budget for budget in depths if budget.kind == "trained"]
    thresholds = [budget for budget in depths if budget.kind == "threshold"]
    return min(trained or thresholds, key=lambda budget: abs(depths[budget] - (1 + full_depth) / 2), default=None)


@dataclass
class _Measuring:
    """Evaluates, times and counts the budgets of a model on the same examples."""

    model: nn.Module
    controller: DepthController
    rows: Rows
    hardware: Hardware
    batch_size: int

    def evaluate(self, budget: DepthBudget | None) -> Depths:
        """Evaluate all examples at a budget; None is the depth at which the model is tested."""
        import numpy as np

        from lra_bench.training.evaluation import evaluate

        of_row: dict[int, tuple[Any, Any, Any]] = {}
        label = "Depth" if budget is None else f"Depth, {budget.kind}"
        label += "" if budget is None or budget.value is None else f" {budget.value:g}"
        places = LANGUAGE_TOKENS if self.rows.spec.kind == "language_modeling" else None
        with self.controller.at_budget(budget), self.controller.recording() as recorded:

            def observe(indices: NDArray[np.int64], batch: Batch, output: Output) -> None:
                depths, targets = recorded.pop(), batch.targets
                predictions, scored = output.logits.argmax(-1), targets != NOT_SCORED
                columns = (depths, predictions, predictions == targets)
                parts = (each[scored].cpu().numpy() for each in columns)
                counts = scored.reshape(len(scored), -1).sum(1).cpu().numpy()
                split = (np.split(part, np.cumsum(counts)[:-1]) for part in parts)
                of_row.update(zip(indices.tolist(), zip(*split, strict=True), strict=True))

            result = evaluate(
                *(self.model, self.rows, self.rows.spec, self.hardware, self.batch_size, label, places),
                observe=observe,
            )
        columns = (np.concatenate(part) for part in zip(*(of_row[row] for row in sorted(of_row)), strict=True))
        return Depths(result, *columns)

    def timed_batches(self) -> list[Batch]:
        """Return batches of examples with lengths from short to long, on the device."""
        import numpy as np

        from lra_bench.data.batches import evaluation_batches
        from lra_bench.data.windows import cut_all

        rows, language = self.rows, self.rows.spec.kind == "language_modeling"
        windows = cut_all(rows.lengths, rows.spec.train_length, LANGUAGE_TOKENS) if language else None
        count = -(-len(rows if windows is None else windows) // self.batch_size)
        turns = np.unique(np.linspace(0, count - 1, TIMED_BATCHES).round().astype(int)).tolist()
        found = (
            evaluation_batches(rows, self.batch_size, turns=turns)
            if windows is None
            else windows.batches(rows, self.batch_size, turns)
        )
        return [batch.to(self.hardware.device) for _, batch in found]

    def seconds_per_token(self, budgets: Sequence[DepthBudget], batches: Sequence[Batch]) -> dict[DepthBudget, float]:
        """Return the time of a forward pass per token at each budget, the median over rounds."""
        import numpy as np

        from lra_bench.training.evaluation import evaluating

        rounds: dict[DepthBudget, list[float]] = {budget: [] for budget in budgets}
        with evaluating(self.model), self.hardware.autocast():
            for number in range(ROUNDS + 1):
                for budget in budgets:
                    with self.controller.at_budget(budget):
                        self.hardware.synchronize()
                        start = time.perf_counter()
                        for batch in batches:
                            self.model(batch)
                        self.hardware.synchronize()
                        if number:  # the first round is a warm-up
                            rounds[budget].append(time.perf_counter() - start)
        tokens = sum(int(batch.lengths.sum()) for batch in batches)
        return {budget: float(np.median(durations)) / tokens for budget, durations in rounds.items()}

    def flops_per_token(self, budget: DepthBudget, batches: Sequence[Batch]) -> float | None:
        """Return the FLOPs per token that a forward pass executes at a budget, None if they cannot be counted."""
        from lra_bench.profiling.flops import forward_flops

        with self.controller.at_budget(budget):
            counted = [forward_flops(self.model, batch) for batch in batches]
        total = [each for each in counted if each is not None]
        tokens = sum(int(batch.lengths.sum()) for batch in batches)
        return sum(total) / tokens if len(total) == len(counted) else None


def _slices(slicings: Mapping[str, Slicing], chosen: NDArray[np.int64] | None, depths: Depths) -> list[DepthSlice]:
    """Return mean depth and accuracy of every slice; ``chosen`` are the examples of the split, None for all."""
    labels = ((name, own, place, label) for name, own in slicings.items() for place, label in enumerate(own.labels))
    return [
        {
            "slicing": name,
            "label": label,
            "n": int(members.sum()),
            "mean_depth": float(depths.depth[members].mean()),
            "deviation": float(depths.depth[members].std()),
            "score": float(depths.correct[members].mean()),
        }
        for name, own, place, label in labels
        if (members := (own.label_of if chosen is None else own.label_of[chosen]) == place).any()
    ]
