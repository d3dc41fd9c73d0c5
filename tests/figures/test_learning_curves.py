"""Learning curves: the floor of the validation split, the region below it, and curves that never exceed it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from lra_bench.figures.palette import AT_FLOOR, BELOW_FLOOR
from lra_bench.records import store
from lra_bench.records.schema import Record
from tests.figures.test_figures import one, written
from tests.support.record_factory import make_curves, make_record


def saved(
    folder: Path, model: str, best: float, seed: int = 0, floor: float | None = 0.3, bits: bool = False
) -> Record:
    """Store a record whose validation scores approach ``best`` and end worse; ``floor`` is that of validation."""
    record = make_record(model, seed=seed)
    assert record.training is not None
    if floor is not None:
        record.training.update({"validation_floor": floor, "validation_floor_name": "bag_of_bytes"})
    if bits:
        record.metrics = {"test": {"bits_per_character": 3.0, "loss": 2.0, "n": 9, "low": 2.9, "high": 3.1}}
        record.floors = {"order_2": 3.5}
    curves = make_curves()
    worse = 1.0 if bits else -0.1
    known = curves["validation_score"].notna()
    curves.loc[known, "validation_score"] = [best + worse, best, best + worse / 2, best + worse]
    store.write(record, folder, curves)
    return record


def axes(records: list[Record]) -> tuple[Axes, str]:
    """Return the axes of the only panel, and all texts of the figure."""
    figure, _ = one("learning_curves", records)
    [ax] = figure.axes
    return ax, " ".join(" ".join(written(figure)).split())


def drawn_floor(ax: Axes) -> float:
    [line] = [line for line in ax.lines if line.get_gid() == "floor"]
    return float(next(iter(line.get_ydata())))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("floors", "drawn", "where"),
    [
        ((0.3, 0.3), 30.0, "on the validation split): bag of bytes"),
        ((None, None), 33.5, "on the test split): root operator and digits"),
        ((0.3, None), 30.0, "on the validation split): bag of bytes"),
    ],
)
def test_the_floor_is_that_of_the_validation_split_if_it_is_recorded(
    tmp_path: Path, floors: tuple[float | None, ...], drawn: float, where: str
) -> None:
    made = [saved(tmp_path, model, 0.5, floor=floor) for model, floor in zip(("local", "lstm"), floors, strict=True)]
    ax, texts = axes(made)
    assert drawn_floor(ax) == pytest.approx(drawn)
    assert where in texts


def test_curves_without_a_known_floor_have_no_shaded_region(tmp_path: Path) -> None:
    record = saved(tmp_path, "local", 0.5, floor=None)
    record.floors = {}
    ax, texts = axes([record])
    assert not ax.patches and not any(line.get_gid() == "floor" for line in ax.lines) and "floor" not in texts


@pytest.mark.parametrize(("bits", "floor"), [(False, 0.3), (True, 3.4)])
def test_scores_that_are_not_better_than_the_floor_are_shaded(tmp_path: Path, bits: bool, floor: float) -> None:
    ax, texts = axes([saved(tmp_path, "local", 2.5 if bits else 0.5, floor=floor, bits=bits)])
    [region] = [patch for patch in ax.patches if patch.get_gid() == "below floor"]
    low, high = region.get_extents().transformed(ax.transData.inverted()).intervaly
    bottom, top = ax.get_ylim()
    assert (low, high) == pytest.approx((floor, top) if bits else (bottom, 100 * floor))
    assert to_hex(region.get_facecolor()) == BELOW_FLOOR.lower()
    assert "shaded: scores that are not better than the floor" in texts


@pytest.mark.parametrize("bits", [False, True])
def test_a_curve_is_grey_only_if_no_seed_is_ever_better_than_the_floor(tmp_path: Path, bits: bool) -> None:
    """Of luna one seed clears the floor at one evaluation only; its mean never does."""
    floor, better, equal, worse = (3.4, 3.3, 3.4, 3.9) if bits else (0.3, 0.31, 0.3, 0.2)
    made = [
        saved(tmp_path, "local", better, floor=floor, bits=bits),
        saved(tmp_path, "lstm", equal, floor=floor, bits=bits),
        *(saved(tmp_path, "luna", best, seed, floor, bits) for seed, best in enumerate((better, worse))),
    ]
    ax, texts = axes(made)
    grey = [line for line in ax.lines if line.get_color() == AT_FLOOR]
    curves = [line for line in ax.lines if line.get_gid() is None]
    assert len(curves) == 3 and len(grey) == 1
    assert np.max(grey[0].get_ydata()) == pytest.approx(equal + 1.0 if bits else 100 * equal)
    assert "grey curves: never better than the floor, in any seed" in texts
    _, texts = axes(made[:1])
    assert "grey curves" not in texts


def test_the_legend_shows_a_curve_in_grey_if_it_is_grey_in_every_panel(tmp_path: Path) -> None:
    made = [saved(tmp_path, model, best) for model, best in (("local", 0.5), ("lstm", 0.2))]
    figure, _ = one("learning_curves", made)
    colours = [to_hex(line.get_color()) for found in figure.legends for line in found.legend_handles]
    assert colours.count(AT_FLOOR.lower()) == 2  # the curve, and the entry that explains grey curves
