"""Figures: data equal to the records, readable layout, and reproducible files."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from lra_bench import figures
from lra_bench.contracts import UserError
from lra_bench.figures import NothingToDrawError, draw, figure_names, layout, style, task_table
from lra_bench.figures import figure as load
from lra_bench.figures.curves import limits
from lra_bench.figures.layout import Sheet
from lra_bench.figures.palette import AT_FLOOR, contrast
from lra_bench.figures.slices import COSTS
from lra_bench.figures.variants import score_extent
from lra_bench.measurements.length_curves import section
from lra_bench.records import store
from lra_bench.records.schema import Record
from tests.support.record_factory import (
    LENGTHS,
    RATIOS,
    SLICES,
    make_costs,
    make_curves,
    make_growth,
    make_pairs,
    make_record,
    make_slice,
    make_speed,
)

TIMED = ("score_vs_cost", "score_vs_speed", "speed_vs_length", "score_vs_growth", "score_vs_depth")
OWN_MODULE = ("score_vs_length", "abilities", "rate_search", "middle_phase", "minimal_pairs", "gain")
OF_ONE_LENGTH = tuple(name for name in figure_names() if name not in OWN_MODULE)
"""Figures that can be drawn from trainings of any task at one length; the others have separate test modules."""
OF_SCORES = (
    "score_vs_speed", "score_vs_growth", "extrapolation", "evaluation_knobs", "slices", "learning_curves", "heat_map",
    "ranks", "score_vs_state", "score_vs_cost",
)  # fmt: skip
LONG = {"model.mixer.features": 64, "model.mixer.kernel": "softmax_positive_orthogonal"}
FAMILIES = {"local": "sparse", "bag_of_tokens": "control", "transformer": "full", "reformer": "routed"}


def records() -> list[Record]:
    return [
        *[make_record(model, seed=seed) for model in ("local", "performer", "bag_of_tokens") for seed in range(3)],
        make_record("transformer", speed_failures={16384: "out_of_memory"}),
        make_record("reformer", status="diverged", speed_failures={1024: "timeout"}),
        make_record("performer", hash="ffff0000", differences=LONG, position="rope"),
    ]


def many(models: int = 11, tasks: tuple[str, ...] = ("listops", "retrieval_synthetic")) -> list[Record]:
    """Return records of more variants than fit a panel, of several families and with distinct results."""
    names = ("transformer", "local", "longformer", "linear", "rfa", "nystrom", "luna", "routing", "gmlp", "sac", "etc")
    named = [*names, *(f"invention_{number}" for number in range(models - len(names)))][:models]
    families = ("full", "sparse", "sparse", "linear", "linear", "low_rank", "compressed", "routed", "attention_free")
    made = []
    for number, (model, task) in enumerate(itertools.product(named, tasks)):
        growth = 1 + (7 * number % 11) / 11
        record = make_record(model, task, accuracy=0.25 + (5 * number % 17) / 80)
        record.speed = make_speed(growth, 1e-5 * (1 + 3 * number % 5), False, {})
        record.growth = {mode: make_growth(growth) for mode in ("train", "inference")}
        record.profiled = make_costs(growth)
        record.capability = {"family": families[number // len(tasks) % len(families)]}
        made.append(record)
    return made


def stored(made: list[Record], folder: Path) -> list[Record]:
    """Write records with learning curves, knobs and losses by position, and return them."""
    for record in made:
        if record.status == "ok":
            curves = make_curves()
            curves["validation_score"] *= 1 + 0.1 * record.key.seed
            store.write(with_knobs(record), folder, curves)
    return made


@pytest.fixture(scope="module")
def stored_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[], list[Record]]], list[Record]]:
    """Return a cached function that stores the records made by its argument; tests must not modify them."""
    return cache(lambda make: stored(make(), tmp_path_factory.mktemp(make.__name__)))


def with_knobs(record: Record) -> Record:
    """Return the record with curves of two knobs, losses by position and scores by memory length."""
    old = record.extrapolation
    assert old is not None
    with_knob = [
        {**point, "knob": knob, "score": 0.3 + 0.01 * number}
        for number, knob in enumerate(("position.scaling=yarn", "model.mixer.log_n=true"))
        for point in old["points"]
        if point["ratio"] > 1
    ]
    rows = [
        {"knob": "", "ratio": ratio, "length": int(500 * ratio), "first": last // 2 + 1, "last": last,
         "n": 10 * last, "bits_per_character": 3 + 0.1 * record.key.seed - 0.1 * last**0.2}
        for ratio in (1.0, 2.0)
        for last in (1, 2, 4, 125, 250, 500, 1000)
        if last <= 500 * ratio
    ]  # fmt: skip
    record.extrapolation = section(500, [*old["points"], *with_knob], rows, old["attempts"], True)
    memory: Any = [
        {"memory_length": length, "n": 100, "score": 3 - 0.1 * number + 0.01 * record.key.seed, "loss": 2.0,
         "low": 2.0, "high": 4.0, "state_bytes": 1000 * (number + 1)}
        for number, length in enumerate((0, 128, 512))
    ]  # fmt: skip
    record.memory = {"trained_length": 128, "window_length": 64, "points": memory, "attempt": 1}
    record.adaptive_depth = make_depths(record.key.seed)
    return record


def make_depths(seed: int) -> Any:
    """Return results of exits at each of four layers and at three thresholds, and depths of slices."""
    points = [
        {"kind": kind, "value": value, "n": 1000, "score": 0.2 + 0.05 * depth + 0.01 * seed, "loss": 2.0,
         "low": 0.18 + 0.05 * depth, "high": 0.24 + 0.05 * depth, "mean_depth": depth, "disagreement": 0.1,
         "flops_per_token": 20_000 * depth, "seconds_per_token": 1e-6 * depth}
        for kind, value, depth in (
            ("layers", 1.0, 1.0), ("layers", 2.0, 2.0), ("layers", 4.0, 4.0), ("threshold", 0.9, 3.0),
            ("threshold", 0.1, 1.5),
        )
    ]  # fmt: skip
    slices = [
        {"slicing": slicing, "label": label, "n": 100, "mean_depth": 1.5 + 0.5 * number + 0.2 * seed,
         "deviation": 0.25, "score": 0.5}
        for slicing, labels in (("depth", ("10", "2", "3")), ("distance", ("33",)))
        for number, label in enumerate(labels)
    ]  # fmt: skip
    return {
        "full_depth": 4, "adapts_by": "example", "points": points, "sliced": {"kind": "threshold", "value": 0.9},
        "slices": slices, "calibration": [], "attempt": 1,
    }  # fmt: skip


def sheets(name: str, made: list[Record], width: float = style.PAGE_INCHES) -> list[Sheet]:
    module = load(name)
    usable = [r for r, reason in zip(made, module.exclusions(made), strict=True) if not reason]
    found = [replace(sheet, pages=list(sheet.pages)) for sheet in module.draw(module.table(usable), width)]
    for sheet in found:
        for page in sheet.pages:
            page.set_label("\n".join(sheet.notes))
    return found


def legend(figure: Figure) -> list[str]:
    """Return the labels of the legends, and the sentences of the caption that replace labels without room."""
    return [*(text.get_text() for found in figure.legends for text in found.get_texts()), *notes(figure)]


def notes(figure: Figure) -> list[str]:
    """Return the sentences of the caption of a page of ``sheets``."""
    return list(filter(None, str(figure.get_label()).split("\n")))


def one(name: str, made: list[Record]) -> tuple[Figure, pd.DataFrame]:
    [sheet] = sheets(name, made)
    return sheet.pages[0], sheet.data


def written(figure: Figure) -> list[str]:
    """Return all texts of a page of ``sheets`` and the sentences of its caption."""
    return [*(text.get_text() for text in figure.findobj(Text)), *notes(figure)]


def test_extrapolation_shows_means_with_intervals() -> None:
    _, data = one("extrapolation", records())
    local = data[data["variant"] == "local"].set_index("ratio")
    assert list(local.index) == list(RATIOS)
    at2 = [record.extrapolation["points"][2] for record in records() if record.key.model == "local"]
    assert local.loc[2.0, "score"] == pytest.approx(np.mean([point["score"] for point in at2]))
    assert (local.loc[2.0, "interval"], local.loc[2.0, "seeds"]) == ("each", 3)
    scores = local.loc[2.0, "seed_scores"]
    assert [*scores] == pytest.approx([point["score"] for point in at2]) and pd.isna(local.loc[2.0, "low"])
    alone = data[data["variant"] == "transformer"].set_index("ratio").loc[4.0]
    point = make_record("transformer").extrapolation["points"][3]
    assert (alone["low"], alone["score"], alone["high"]) == (point["low"], point["score"], point["high"])
    assert alone["floor"] == point["floor"]
    assert "reformer" not in set(data["model"])


def test_extrapolation_draws_floor_training_length_and_one_line_per_variant() -> None:
    figure, data = one("extrapolation", records())
    (ax,) = figure.axes
    (floor,) = [line for line in ax.lines if line.get_gid() == "floor"]
    np.testing.assert_allclose(
        floor.get_ydata(), [100 * point["floor"] for point in make_record().extrapolation["points"]]
    )
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ax.lines)
    drawn = [line for line in ax.lines if line.get_gid() not in ("seed", "at floor")]
    assert len(drawn) == 2 + data["label"].nunique()
    seeds = [line for line in ax.lines if line.get_gid() == "seed"]
    three = data[data["seeds"] == 3]["label"].nunique()
    assert len(seeds) == three and all(len(line.get_xdata()) == 3 * len(RATIOS) for line in seeds)
    legend_text = "".join(written(figure)).replace(" ", "").replace("\n", "")
    assert all(
        name.replace(" ", "") in legend_text
        for name in ("floor (baseline without a model): root operator", *data["label"])
    )


def test_the_legend_of_each_page_contains_the_curves_of_that_page_only() -> None:
    made = [make_record("performer", task) for task in ("copy", "image", "listops", "needle", "parity", "recall")]
    [sheet] = sheets("extrapolation", [*made, make_record("local", "text")], style.COLUMN_INCHES)
    found = ["".join(text.get_text() for text in page.legends[0].get_texts()) for page in sheet.pages]
    assert len(found) > 1 and "Local" in found[-1]
    assert all("Performer" in each and "Local" not in each for each in found[:-1])


def without_scores(record: Record, beyond: float, status: str) -> Record:
    """Return the record without scores from a length ratio on."""
    assert record.extrapolation is not None
    points = record.extrapolation["points"]
    none = {"score": None, "low": None, "high": None, "status": status}
    points[:] = [{**point, **none} if point["ratio"] >= beyond else point for point in points]  # type: ignore[typeddict-item]
    return record


def test_legends_state_where_and_why_a_curve_ends() -> None:
    made = [
        *(without_scores(make_record("transformer", seed=seed), 8, "out_of_memory") for seed in range(2)),
        make_record("transformer", "text"),
        *(without_scores(make_record("linformer", task), 2, "undefined") for task in ("listops", "text")),
        without_scores(make_record("local"), 4, "not_finite"),
        make_record("local", seed=1),
    ]
    figure, data = one("extrapolation", made)
    lines = "".join(legend(figure))
    named = lines.replace("\N{NO-BREAK SPACE}", " ").replace(" ", "")
    for name in ("Transformer · out of memory at 8× in listops", "Linformer · undefined at 2×"):
        assert name.replace(" ", "") in named
    assert "Local·" not in named
    ended = data[data["status"] != "ok"]
    assert ended["score"].isna().all() and (ended["seeds"] == 0).all() and len(ended) == 1 + 2 * 3
    drawn = [line for line in figure.axes[0].lines if line.get_zorder() == 3.5]
    assert sorted(np.isfinite(line.get_ydata()).sum() for line in drawn) == [2, 4, 5]


def test_a_panel_without_scores_keeps_its_scale() -> None:
    rows = pd.DataFrame([dict.fromkeys(("score", "low", "high", "floor")) | {"seed_scores": []}])
    ends = score_extent(rows)
    assert np.isnan(ends).all()
    axes = Figure().add_subplot()
    limits(axes, *ends)
    assert axes.get_ylim() == (0, 1)


def test_length_variants_have_separate_panels_that_share_the_training_length() -> None:
    record = make_record(task="text")
    points = record.extrapolation["points"]
    points[:] = [{**point, "variant": "truncated"} for point in points]
    points += [{**point, "variant": "filler", "score": 0.2} for point in points if point["ratio"] > 1]
    figure, data = one("extrapolation", [record])
    assert [ax.get_title("left") for ax in figure.axes] == ["text · filler", "text · truncated"]
    ratios = data.groupby("length_variant")["ratio"].apply(list)
    assert ratios["truncated"] == list(RATIOS) and ratios["filler"] == [1.0, 2.0, 4.0, 8.0]
    assert set(data[(data["length_variant"] == "filler") & (data["ratio"] > 1)]["score"]) == {0.2}


def test_knobs_have_one_panel_per_variant_and_are_excluded_from_extrapolation() -> None:
    made = [with_knobs(make_record()), with_knobs(make_record("local")), make_record("transformer")]
    figure, data = one("evaluation_knobs", made)
    assert [ax.get_title("left") for ax in figure.axes] == ["listops · Local", "listops · Performer"]
    settings = ["as trained", "model.mixer.log_n=true", "position.scaling=yarn"]
    assert legend(figure) == [
        *settings, "floor (baseline without a model): root operator", "95 % confidence interval over examples",
        "grey: not shown to exceed the floor",
    ]  # fmt: skip
    own = data[data["model"] == "local"].groupby("setting")
    assert own["ratio"].apply(list).to_dict() == {setting: [1.0, 2.0, 4.0, 8.0] for setting in settings}
    assert list(own.get_group("model.mixer.log_n=true")["score"])[1:] == [0.31] * 3
    for ax in figure.axes:
        drawn = [line for line in ax.lines if line.get_zorder() == 3.5]
        assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in drawn}) == 3
    _, plain = one("extrapolation", made)
    assert set(plain["model"]) == {"local", "performer", "transformer"}
    assert not plain.duplicated(["model", "ratio"]).any() and 0.31 not in set(plain["score"])


def test_many_knobs_share_one_panel() -> None:
    record = make_record()
    old = record.extrapolation["points"]
    with_knob = [{**point, "knob": f"knob={number}"} for number in range(12) for point in old if point["ratio"] > 1]
    old.extend(with_knob)
    figure, data = one("evaluation_knobs", [record])
    (ax,) = figure.axes
    drawn = [line for line in ax.lines if line.get_zorder() == 3.5]
    looks = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in drawn}
    assert len(looks) == len(drawn) == data["setting"].nunique() == 13


def test_losses_by_position_show_mean_and_range_over_seeds_at_the_end_of_bins() -> None:
    made = [with_knobs(make_record(seed=seed)) for seed in (0, 1)]
    figure, data = one("loss_by_position", made)
    (ax,) = figure.axes
    assert [list(line.get_xdata())[-1] for line in ax.lines if line.get_zorder() == 3.5] == [500, 1000]
    assert any(list(line.get_xdata()) == [500, 500] for line in ax.lines)
    expected = 3 - 0.1 * 1000**0.2
    (at,) = data[(data["ratio"] == 2) & (data["last"] == 1000)].to_dict("records")
    found = [at[name] for name in ("low", "bits_per_character", "high")]
    assert found == pytest.approx([expected, expected + 0.05, expected + 0.1])
    assert (at["seeds"], at["n"]) == (2, 20_000)
    (floor,) = [line for line in ax.lines if line.get_gid() == "floor"]
    recorded = {point["ratio"]: point["floor"] for point in made[0].extrapolation["points"]}
    mean = (recorded[1] + recorded[2]) / 2
    assert list(floor.get_ydata()) == pytest.approx([mean, mean])
    assert ax.get_ylim()[0] < mean < ax.get_ylim()[1]
    assert "floor (baseline without a model, mean over positions)" in " ".join(" ".join(written(figure)).split())


def test_scores_by_memory_length_and_bytes_have_the_values_of_the_records() -> None:
    made = [with_knobs(make_record(seed=seed)) for seed in (0, 1)]
    figure, data = one("score_vs_memory", made)
    bits, state = figure.axes
    (curve,) = [line for line in bits.lines if line.get_zorder() == 3.5]
    assert list(curve.get_xdata()) == [1, 128, 512]
    assert list(curve.get_ydata()) == pytest.approx([3.005, 2.905, 2.805])
    (curve,) = [line for line in state.lines if line.get_zorder() == 3.5]
    assert list(curve.get_ydata()) == [1000, 2000, 3000]
    assert [label.get_text() for label in bits.get_xticklabels()] == ["0", "128", "512"]
    assert set(data["seeds"]) == {2} and data["low"].min() == pytest.approx(2.8)
    (floor,) = [line for ax in (bits, state) for line in ax.lines if line.get_gid() == "floor"]
    assert floor.axes is bits and floor.get_ydata()[0] == made[0].best_floor()[1]


def test_scores_over_layers_flops_and_time_are_those_of_the_budgets() -> None:
    made = [with_knobs(make_record(seed=seed)) for seed in (0, 1)]
    figure, data = one("score_vs_depth", made)
    assert [ax.get_xlabel() for ax in figure.axes] == [label for _, label, _ in COSTS.values()]
    for ax, scale in zip(figure.axes, (1, 0.02, 1), strict=True):
        fixed, adaptive = [line for line in ax.lines if line.get_zorder() == 3.5]
        assert list(fixed.get_xdata()) == pytest.approx([scale, 2 * scale, 4 * scale])
        assert list(fixed.get_ydata()) == pytest.approx([25.5, 30.5, 40.5])
        assert list(adaptive.get_xdata()) == pytest.approx([1.5 * scale, 3 * scale])
        (floor,) = [line for line in ax.lines if line.get_gid() == "floor"]
        assert floor.get_ydata()[0] == pytest.approx(100 * made[0].best_floor()[1])
    assert {"exit at one layer", "exit at a confidence"} <= set(data["rule"]) and len(data) == 3 * 5
    made[0].adaptive_depth["points"][0]["flops_per_token"] = None
    made[1].adaptive_depth["points"][0]["flops_per_token"] = None
    assert len(one("score_vs_depth", made)[1]) == 3 * 5 - 1
    assert load("score_vs_depth").exclusions([make_record()]) == ["without budgets of depth"]


def test_depths_by_slice_are_sorted_with_their_deviation() -> None:
    made = [with_knobs(make_record(seed=seed)) for seed in (0, 1)]
    figure, data = one("depth_by_slice", made)
    (ax,) = figure.axes
    (curve,) = [line for line in ax.lines if line.get_zorder() == 3.5]
    assert list(curve.get_ydata()) == pytest.approx([2.1, 2.6, 1.6])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "3", "10"]
    assert (data["high"] - data["mean_depth"]).tolist() == pytest.approx([0.25] * 3) and set(data["n"]) == {200}
    assert ax.get_title("left").endswith("by depth") and ax.get_ylabel() == "mean number of layers"
    assert load("depth_by_slice").exclusions([make_record()]) == ["without depths of several slices"]


def test_losses_with_a_knob_have_separate_axes() -> None:
    record = with_knobs(make_record())
    rows = record.extrapolation["by_position"]
    rows += [{**row, "knob": "position.scaling=yarn"} for row in rows if row["ratio"] > 1]
    figure, _ = one("loss_by_position", [record])
    titles = [ax.get_title("left").replace("\n", " ") for ax in figure.axes]
    assert titles == ["listops · Performer", "listops · Performer · position.scaling=yarn"]


def test_slices_show_the_mean_over_seeds_and_the_floor_of_each_slice() -> None:
    figure, data = one("slices", records())
    assert [ax.get_title("left") for ax in figure.axes] == ["listops · by length", "listops · by operator"]
    for ax, (slicing, labels) in zip(figure.axes, SLICES.items(), strict=True):
        assert [tick.get_text() for tick in ax.get_xticklabels()] == list(labels)
        points = [point for point in make_record("transformer").slices if point["slicing"] == slicing]
        (floor,) = [line for line in ax.lines if line.get_gid() == "floor"]
        every = 1 if slicing == "length" else 3  # floors of categories are short lines with gaps between them
        np.testing.assert_allclose(floor.get_ydata()[::every], [100 * point["floor"] for point in points])
        own = data[(data["variant"] == "transformer") & (data["slicing"] == slicing)].sort_values("place")
        assert list(own["slice"]) == list(labels)
        for column in ("score", "low", "high", "n"):
            assert list(own[column]) == [point[column] for point in points]  # type: ignore[literal-required]
        of_seeds = [[p for p in r.slices if p["slicing"] == slicing] for r in records() if r.key.model == "local"]
        means = [np.mean([point["score"] for point in points]) for points in zip(*of_seeds, strict=True)]
        local = data[(data["variant"] == "local") & (data["slicing"] == slicing)].sort_values("place")
        assert list(local["score"]) == pytest.approx(means) and set(local["interval"]) == {"each"}
        drawn = [line for line in ax.lines if line.get_zorder() == 3.5]
        assert sorted(tuple(line.get_ydata()) for line in drawn) == sorted(
            tuple(100 * rows.sort_values("place")["score"])
            for _, rows in data[data["slicing"] == slicing].groupby("label")
        )
    assert "reformer" not in set(data["model"])


def test_minimal_pairs_show_the_score_by_label_and_random_guesses() -> None:
    made = [make_record("transformer", seed=n, minimal_pairs=make_pairs(0.9, 0.5 + 0.1 * n, 0.02)) for n in range(3)]
    made += [make_record("local", minimal_pairs=make_pairs(0.4, 0.0, 0.0)), make_record("performer")]
    figure, data = one("minimal_pairs", made)
    (ax,) = figure.axes
    assert ax.get_title("left") == "listops · by level" and ax.get_ylabel() == "pairs with both right (%)"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "3"]
    (chance,) = [line for line in ax.lines if line.get_gid() == "floor"]
    assert set(chance.get_ydata()) == {1.0}
    assert set(data["variant"]) == {"transformer", "local"}
    own = data[data["variant"] == "transformer"].sort_values("place")
    assert list(own["score"]) == pytest.approx([0.9, 0.6, 0.02]) and list(own["learned"]) == [3, 3, 0]
    lines = {tuple(line.get_ydata()) for line in ax.lines if line.get_zorder() == 3.5}
    assert lines == {tuple(100 * own["score"]), (40.0, 0.0, 0.0)}
    assert load("minimal_pairs").exclusions(made) == [*[""] * 4, "without minimal pairs"]


def test_slices_are_sorted_by_their_first_number_and_single_slices_are_not_drawn() -> None:
    made = [make_record("transformer"), make_record("local")]
    labels = {"transformer": ("4", "16"), "local": ("2", "4", "1,024–2,047")}
    for record in made:
        record.slices = [make_slice("pairs", label, 0.5, 10) for label in labels[record.key.model]]
        record.slices.append(make_slice("distance", "33", 0.5, 30))
    figure, data = one("slices", made)
    (ax,) = figure.axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["2", "4", "16", "1,024–2,047"]
    assert dict(zip(data["slice"], data["place"], strict=True)) == {"2": 0, "4": 1, "16": 2, "1,024–2,047": 3}
    made[0].slices = made[0].slices[-1:]
    assert set(one("slices", made)[1]["model"]) == {"local"}


@pytest.mark.parametrize("width", style.WIDTHS.values(), ids=style.WIDTHS)
def test_labels_of_many_slices_do_not_overlap(width: float) -> None:
    made = [make_record("transformer"), make_record("local")]
    for record in made:
        record.slices = [make_slice("length", f"{1000 * n:,}–{1000 * n + 999:,}", n / 20, 10) for n in range(1, 20)]
        record.slices += [make_slice("distance", f"{10**n:,}–{10 ** (n + 1) - 1:,}", n / 20, 10) for n in range(4)]
        record.slices += [make_slice("depth", f"{n}", n / 20, 10) for n in range(2, 11)]
    check_layout("slices", made, width)
    figure, _ = one("slices", made)
    depth, distance, length = ([tick.get_text() for tick in ax.get_xticklabels()] for ax in figure.axes)
    assert len(depth) == 9 and len(distance) == 4 and 1 < len(length) < 19


def test_labels_with_many_modified_keys_contain_their_number() -> None:
    _, data = one("extrapolation", [make_record(protocol_modified=["task.rows", "train.lr", "train.steps"])])
    assert set(data["label"]) == {"Performer (3 keys changed)"}


def test_learning_curves_show_mean_and_range_over_seeds(tmp_path: Path) -> None:
    _, data = one("learning_curves", stored(records(), tmp_path))
    local = data[data["label"] == "Local"].set_index("step")
    assert list(local.index) == [25, 50, 75, 100]
    expected = make_curves().dropna().set_index("step")["validation_score"][50]
    assert local.loc[50, "score"] == pytest.approx(1.1 * expected)
    assert (local.loc[50, "low"], local.loc[50, "high"]) == pytest.approx((expected, 1.2 * expected))


def test_speed_shows_medians_and_failures() -> None:
    figure, data = one("speed_vs_length", records())
    of = data[(data["variant"] == "transformer") & (data["mode"] == "train")]
    time, memory = (of[of["quantity"] == quantity].set_index("length") for quantity in ("time", "memory"))
    assert list(time.index) == list(LENGTHS)
    points = {point["length"]: point for point in make_record("transformer").speed if point["mode"] == "train"}
    assert time.loc[2048, "value"] == points[2048]["median_seconds"]
    assert memory.loc[2048, "value"] == points[2048]["peak_resident_growth_bytes"]
    assert time.loc[16384, "status"] == "out_of_memory" and pd.isna(time.loc[16384, "value"])
    all_text = " ".join(written(figure)).replace("\n", " ").replace("\N{NO-BREAK SPACE}", " ")
    assert "out of memory at 16k" in all_text and "time limit at 1k" in all_text
    assert "time 1.00, 1.00" in all_text and "exponent a of N^a (training, inference)" in all_text


@pytest.mark.parametrize("name", ["speed_vs_length", "score_vs_speed"])
def test_axes_have_tick_labels_with_a_single_length(name: str) -> None:
    record = make_record(growth={})
    record.speed = [point for point in record.speed if point["length"] == 1024]
    record.speed[1]["peak_resident_growth_bytes"] = 0
    figure, _ = one(name, [record])
    with style.style():
        figure.draw_without_rendering()
    for ax in figure.axes:
        low, high = ax.get_ylim()
        assert len([tick for tick in ax.get_yticks() if low <= tick <= high]) >= 3
        low, high = ax.get_xlim()
        of_lengths = ax.get_xlabel().startswith("length")
        assert len([tick for tick in ax.get_xticks() if low <= tick <= high]) >= (1 if of_lengths else 3)
    assert not any("N^" in text for text in written(figure))


def test_machines_and_batch_sizes_have_separate_axes() -> None:
    wide = make_record("local", seed=1)
    for point in wide.speed:
        point["batch_size"] = 32
    made = [make_record(), make_record(hardware="h200-bf16"), wide]
    drawn = {sheet.name: sheet for sheet in sheets("speed_vs_length", made)}
    assert list(drawn) == ["quick-cpu-epyc-2t", "quick-h200-bf16"]
    headings = [page.get_suptitle() for sheet in drawn.values() for page in sheet.pages]
    assert headings == [
        "protocol quick · cpu-epyc-2t · listops · batch 1",
        "protocol quick · cpu-epyc-2t · listops · batch 32",
        "protocol quick · h200-bf16 · listops · batch 1",
    ]
    assert len(sheets("score_vs_speed", made)[0].pages[0].axes) == 2


def of_two_versions() -> list[Record]:
    made = [make_record(model, hash=version * 8) for version in "12" for model in ("transformer", "performer")]
    for record in made:
        record.data["version"] = record.key.hash[0]
    return made


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
def test_versions_of_a_task_have_separate_axes(name: str, stored_once) -> None:
    [sheet] = sheets(name, stored_once(of_two_versions))
    assert set(sheet.data["label"]) <= {"Transformer", "Performer"}
    legend_text = " ".join(text for page in sheet.pages for text in written(page))
    assert "listops v1" in legend_text and "listops v2" in legend_text


def of_several_protocols() -> list[Record]:
    return [
        make_record(model, **options)
        for model in ("transformer", "performer")
        for options in ({}, {"protocol": "small"}, {"protocol_modified": ["train.lr"]}, {"hardware": "h200-bf16"})
    ]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
def test_protocols_and_machines_have_separate_sheets(name: str, stored_once) -> None:
    drawn = sheets(name, stored_once(of_several_protocols))
    assert {"quick", "small", "quick-modified"} <= {sheet.name.replace("-cpu-epyc-2t", "") for sheet in drawn}
    for sheet in drawn:
        assert len(sheet.data[["protocol", "section"]].drop_duplicates()) == 1
        if name in TIMED:
            assert sheet.data["hardware"].nunique() == 1
        elif "modified" not in sheet.name and "small" not in sheet.name:
            assert {"Performer @ cpu-epyc-2t", "Performer @ h200-bf16"} <= set(sheet.data["label"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", ["extrapolation", "evaluation_knobs", "loss_by_position", "speed_vs_length", "heat_map"]
)
def test_variants_with_equal_names_have_distinct_labels(name: str) -> None:
    changes = ({"hash": "aaaa0000"}, {"hash": "bbbb0000"}, {"protocol_modified": ["train.lr"]})
    alike = [with_knobs(make_record(**change)) for change in changes]
    assert {label for sheet in sheets(name, alike) for label in sheet.data["label"]} == {
        "Performer #aaaa0000", "Performer #bbbb0000", "Performer (train.lr changed)",
    }  # fmt: skip


def test_the_best_of_many_variants_are_drawn_in_colour() -> None:
    made = many()
    made.append(make_record("bag_of_tokens", "listops", accuracy=0.2, capability={"family": "control"}))
    [sheet] = sheets("extrapolation", made)
    [page] = sheet.pages
    assert sheet.data["label"].nunique() == 12  # the data contain all variants
    names = legend(page)
    assert {"Transformer", "Bag Of Tokens"} <= set(names)
    assert sheet.notes[0].startswith("8 of 12 variants highlighted: ")
    places = sheet.data.assign(place=sheet.data.groupby(["task", "ratio"])["score"].rank(ascending=False))
    by_place = places.groupby("label")["place"].mean().sort_values()
    ahead = [label for label in by_place.index if label not in ("Transformer", "Bag Of Tokens")][:4]
    assert set(ahead) <= set(names)
    for ax, own in zip(page.axes, (8, 7), strict=True):
        assert len([line for line in ax.lines if line.get_zorder() == 3.5]) == own
        (faint,) = [line for line in ax.lines if line.get_gid() == "faint"]
        assert np.isnan(faint.get_xdata()).sum() == 4


def test_horizontal_shifts_of_points_are_less_than_5_percent_in_total() -> None:
    [sheet] = sheets("extrapolation", many(8, ("listops",)))
    drawn = [line.get_xdata() for ax in sheet.pages[0].axes for line in ax.lines if line.get_zorder() == 3.5]
    assert len(drawn) == 8
    for x in drawn:
        assert np.abs(np.asarray(x) / RATIOS - 1).max() < 0.022


def test_the_heat_map_shows_every_score_or_status() -> None:
    best = [make_record("linear", seed=seed, accuracy=0.5 + 0.01 * seed) for seed in range(3)]
    figure, data = one("heat_map", [*records(), *best, make_record("local", "text", accuracy=0.9)])
    cells = {text.get_text(): text for ax in figure.axes for text in ax.texts if text.get_gid() == "tag"}
    assert {f"{100 * score:.1f}" for score in data["score"].dropna()} | {"div"} == set(cells)
    bold = {text for text, artist in cells.items() if artist.get_weight() == "bold"}
    assert bold == {f"{100 * score:.1f}" for score in data.loc[data["best"] == True, "score"]}  # noqa: E712
    assert "51.0" in bold and "90.0" not in bold  # the best of three seeds, and one seed
    muted = {text for text, artist in cells.items() if artist.get_color() == task_table.MUTED}
    assert muted == {f"{100 * score:.1f}" for score in data.loc[data["learned"] == 0, "score"]} != set()
    assert "listops\nfloor 33.5" in written(figure) and not any("e+" in text for text in written(figure))
    assert "div: diverged" in written(figure)


def test_text_of_the_heat_map_contrasts_with_every_colour() -> None:
    made = [make_record(f"model{number}", accuracy=0.25 + number / 30) for number in range(22)]
    [sheet] = sheets("heat_map", made)
    for ax in sheet.pages[0].axes:
        behind = ax.collections[-1].get_array().reshape(-1, 4)
        cells = [text for text in ax.texts if text.get_gid() == "tag"]
        colours = {to_hex(colour) for colour in behind}
        assert len(cells) == 22 and len(colours) > 10
        for text, colour in zip(sorted(cells, key=lambda text: text.get_position()[1]), behind, strict=True):
            assert contrast(to_hex(text.get_color()), to_hex(colour)) >= 4.5


def test_score_vs_speed_uses_the_length_nearest_to_that_of_the_score_and_memory_as_area() -> None:
    made = many(4, ("listops",))
    figure, data = one("score_vs_speed", made)
    assert set(data["speed_length"]) == {1024} and set(data["train_length"]) == {500} and len(data) == 4
    made[0].speed = [point for point in made[0].speed if point["length"] > 5000]  # more than ten times the score's
    assert len(one("score_vs_speed", made)[1]) == 3
    (ax,) = figure.axes
    (halos,) = [found for found in ax.collections if found.get_zorder() == 1.5]
    areas = halos.get_sizes() / data["peak_memory_bytes"].to_numpy(float)
    np.testing.assert_allclose(areas, areas[0])
    (front,) = [line for line in ax.lines if line.get_gid() == "front"]
    on_it = set(front.get_xdata())
    for row in data.itertuples():
        better = (data["score"] > row.score) & (data["train_tokens_per_second"] > row.train_tokens_per_second)
        if better.any():
            assert row.train_tokens_per_second not in on_it


def test_score_vs_cost_has_a_panel_for_each_known_cost_near_the_length_of_the_score() -> None:
    made = [make_record(seed=seed) for seed in range(2)]
    made[1].training["train_seconds"] = 300.0
    figure, data = one("score_vs_cost", made)
    found = data.set_index("cost")["value"].to_dict()
    [timed] = [point for point in made[0].speed if (point["mode"], point["length"]) == ("inference", 1024)]
    assert found.pop("milliseconds") == pytest.approx(1e6 * 1.024 / timed["tokens_per_second"])
    assert found == {"seconds": 250.0, "parameters": 51_000, "state": 326.4}
    assert set(data["seeds"]) == {2} and data["score"].tolist() == pytest.approx([data["score"].iloc[0]] * 4)
    labels = ["training seconds", "parameters", "state, kB", "inference ms, length 1k"]
    assert [ax.get_xlabel() for ax in figure.axes] == labels
    for record in made:
        record.speed = [point for point in record.speed if point["length"] > 5000]  # more than ten times the score's
    assert [ax.get_xlabel() for ax in one("score_vs_cost", made)[0].axes] == labels[:3]
    bare = make_record(speed=[], state=None, parameters=None, training=None)
    assert load("score_vs_cost").exclusions([bare]) == ["without a known cost"]


def test_the_legend_of_a_scatter_plot_contains_the_pareto_front_only_if_it_is_drawn() -> None:
    text = "Pareto front of variants that exceed the floor in every seed"
    for made, drawn in ((many(4, ("listops",)), True), ([make_record("performer", accuracy=0.1)], False)):
        (figure, _) = one("score_vs_speed", made)
        (line,) = [line for line in figure.axes[0].lines if line.get_gid() == "front"]
        assert (len(line.get_xdata()) > 1) is drawn
        assert (text in written(figure)) is drawn


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("score_vs_speed", "train_tokens_per_second"),
        ("score_vs_growth", "time_exponent"),
        ("score_vs_state", "state_bytes"),
    ],
)
def test_the_cost_of_one_seed_is_used_for_seeds_without_it(name: str, cost: str) -> None:
    made = [
        make_record("performer"),
        *(make_record("performer", seed=seed, speed=[], profiled=None, state=None) for seed in (1, 2)),
    ]
    (row,) = one(name, made)[1].to_dict("records")
    assert row["seeds"] == 3 and row["score"] == pytest.approx(np.mean([record.score() for record in made]))
    assert row[cost] == one(name, made[:1])[1][cost].item()


def of_three_models() -> list[Record]:
    return [make_record("transformer"), make_record("performer"), make_record("local")]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
def test_excluded_records_are_reported_in_one_line(name: str, stored_once, tmp_path: Path, capsys) -> None:
    whole = stored_once(of_three_models)[:2]
    empty = {
        "metrics": {},
        "speed": [],
        "growth": {},
        "profiled": None,
        "slices": [],
        "extrapolation": None,
        "state": None,
    }
    bare = make_record("performer", hash="cccc0000", **empty)
    paths = draw(name, [*whole, bare], tmp_path / "drawn")
    assert all(path.name.startswith(f"{name}-quick") for path in paths)
    assert capsys.readouterr().err.startswith(f"{name}: 1 of 3 records excluded (1 ")
    with pytest.raises(NothingToDrawError, match=f"plot {name}: .*1 .*; run lra-bench"):
        draw(name, [bare], tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.one_in(5)
def hostile() -> list[Record]:
    """Return records of systems whose names would be formulas of Matplotlib, one without any score."""
    made = [make_record(model, seed=seed) for model in ("local", "performer") for seed in range(2)]
    failed = make_record("fnet", "text", status="diverged")
    for record in [*made, failed]:
        record.variant = {**record.variant, "label": f"$\\undefined$ {record.key.model} _%&#~^<b>"}
    return [*made, failed]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
def test_dollar_signs_in_names_are_drawn_as_they_are(name: str, stored_once, tmp_path: Path) -> None:
    draw(name, stored_once(hostile), tmp_path)
    [caption] = tmp_path.glob("*.tex")
    assert r"$\undefined" not in caption.read_text()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
def test_files_are_reproducible(name: str, stored_once, tmp_path: Path) -> None:
    made = stored_once(of_three_models)
    found = []
    for folder in ("one", "two"):
        paths = draw(name, made, tmp_path / folder, width="one")
        assert {path.suffix for path in paths} == {".pdf", ".png", ".csv", ".txt", ".tex"}
        assert sorted(paths) == sorted((tmp_path / folder).iterdir())
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    assert b"CreationDate" not in found[0][0]
    # TrueType fonts remain editable text; journals reject Type 3 fonts.
    assert b"/FontFile2" in found[0][0] and b"/Type3" not in found[0][0]


def test_invalid_arguments_raise_user_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output"):
        draw("extrapolation", records(), tmp_path / "file")
    with pytest.raises(UserError, match="rank: unknown figure; did you mean ranks"):
        draw("rank", records(), tmp_path)
    with pytest.raises(UserError, match=r"--width three: .*one, two"):
        draw("ranks", records(), tmp_path, width="three")
    with pytest.raises(UserError, match=r"--font times: .*sans-serif, serif"):
        draw("ranks", records(), tmp_path, font="times")


def test_the_font_of_all_text_can_be_serif(tmp_path: Path) -> None:
    for font, name in (("serif", b"DejaVuSerif"), ("sans-serif", b"DejaVuSans")):
        pdf = draw("heat_map", records(), tmp_path / font, font=font)[0].read_bytes()
        assert set(re.findall(rb"/BaseFont /(?:\w+[+])?(\w+)", pdf)) == {name}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
@pytest.mark.parametrize(
    ("cells", "width"), [(records, style.PAGE_INCHES), (many, style.COLUMN_INCHES)], ids=["few", "many"]
)
def test_nothing_is_cut_off_or_overlaps(name: str, cells, width: float, stored_once) -> None:
    check_layout(name, stored_once(cells), width)


def of_seven_tasks() -> list[Record]:
    return many(5, ("copy", "image", "listops", "needle", "recall", "text", "retrieval_synthetic"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["score_vs_speed", "score_vs_growth", "extrapolation", "learning_curves"])
def test_axis_labels_fit_with_three_panels_per_row(name: str, stored_once) -> None:
    check_layout(name, stored_once(of_seven_tasks), style.PAGE_INCHES)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["extrapolation", "score_vs_speed", "score_vs_growth", "ranks"])
def test_the_legend_explains_bars(name: str) -> None:
    def legend_text(made: list[Record]) -> str:
        figure, _ = one(name, made)
        return " ".join(legend(figure))

    of_one = [make_record(model) for model in ("transformer", "performer")]
    of_five = [make_record(model, seed=seed) for model in ("transformer", "performer") for seed in range(5)]
    assert "95 % confidence interval over examples" in legend_text(of_one)
    assert "95 % confidence interval over seeds" in legend_text(of_five)
    assert "over seeds or examples" in legend_text([*of_one, *of_five[5:]])
    few = legend_text([record for record in of_five if record.key.seed < 3])
    assert "each seed" in few and "confidence interval over" not in few


@pytest.mark.one_in(5)
@pytest.mark.parametrize("width", style.WIDTHS.values(), ids=style.WIDTHS)
@pytest.mark.parametrize("name", OF_SCORES)
def test_figures_of_scores_draw_floors_and_no_interval_leaves_the_scale(name: str, width: float, stored_once) -> None:
    for sheet in sheets(name, stored_once(extremes), width):
        scale = 100 if name == "ranks" else 1  # the data of ranks are in percent
        for column in ("low", "high"):
            assert (sheet.data.get(column, pd.Series(dtype=float)).dropna() / scale).between(0, 1).all()
        for page in sheet.pages:
            for ax in page.axes:
                assert [line for line in ax.lines if line.get_gid() == "floor"] or name == "heat_map"


def extremes() -> list[Record]:
    """Return records with scores near 0 and 1, on two levels, and of one to six seeds."""
    levels = {
        "transformer": (0.02, 0.97),
        "local": (0.9, 0.95, 0.99),
        "performer": (0.98, 0.99, 0.97, 0.99, 0.99, 0.98),
    }
    made = [
        make_record(model, task, seed, accuracy=score)
        for model, scores in levels.items() for task in ("listops", "text") for seed, score in enumerate(scores)
    ]  # fmt: skip
    return [*made, make_record("linear", "listops", accuracy=0.1)]


def test_scores_at_the_floor_are_grey() -> None:
    made = [make_record("transformer", accuracy=0.2), make_record("local", accuracy=0.9)]
    for name in ("score_vs_speed", "score_vs_growth", "ranks"):
        figure, _ = one(name, made)
        points = [
            line for line in figure.axes[0].lines if line.get_markerfacecolor() == AT_FLOOR and line.get_gid() is None
        ]
        assert len(points) == 1, name
    figure, _ = one("extrapolation", made)
    (grey,) = [line for line in figure.axes[0].lines if line.get_gid() == "at floor"]
    assert len(grey.get_xdata()) == len(RATIOS)


def test_lengths_of_score_and_cost_are_named() -> None:
    for name, label in (
        ("score_vs_speed", "tokens/s (length 1k, batch 1)"),
        ("score_vs_growth", "1k–16k"),
        ("score_vs_state", "length 500"),
    ):
        figure, _ = one(name, records())
        assert label in figure.axes[0].get_xlabel() and figure.axes[0].get_ylabel().endswith("length 500")


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("width", style.WIDTHS.values(), ids=style.WIDTHS)
@pytest.mark.parametrize("name", OF_ONE_LENGTH)
def test_layout_of_thirty_models_on_nine_tasks_is_readable(name: str, width: float, tmp_path: Path) -> None:
    tasks = ("copy", "enwik8", "image", "listops", "needle", "pathfinder128", "recall", "retrieval_synthetic", "text")
    check_layout(name, stored(many(30, tasks), tmp_path), width)


def check_layout(name: str, made: list[Record], width: float) -> None:
    for page in (page for sheet in sheets(name, made, width) for page in sheet.pages):
        with style.style():
            page.draw_without_rendering()
        assert page.get_size_inches()[0] == width and page.get_size_inches()[1] <= style.PAGE_HEIGHT_INCHES
        boxes = [(text, text.get_window_extent()) for text in shown(page) if text.get_text().strip()]
        assert len(boxes) > 5
        assert min(text.get_fontsize() for text, _ in boxes) >= 6
        for artist in [*page.artists, *(mark for ax in page.axes for mark in (*ax.lines, *ax.collections))]:
            seen = artist.get_tightbbox()
            if seen is not None and np.isfinite(seen.extents).all() and seen.width * seen.height:
                assert page.bbox.padded(1).count_contains(seen.corners()) == 4, artist
        for text, box in boxes:
            inside = page.bbox.x0 - 1 <= box.x0 and box.x1 <= page.bbox.x1 + 1
            assert inside and page.bbox.y0 - 1 <= box.y0 and box.y1 <= page.bbox.y1 + 1, text
        for found in page.legends:
            assert found.get_window_extent().y1 <= (layout.MOST_LEGEND + 0.01) * page.bbox.height
        for (first, one_box), (second, other_box) in itertools.combinations(boxes, 2):
            assert not one_box.padded(-0.5).overlaps(other_box.padded(-0.5)), (first, second)
        for text, box in boxes:
            if any(text in legend.get_texts() for legend in page.legends):
                assert not any(box.overlaps(ax.bbox) for ax in page.axes), text


def shown(figure: Figure) -> Iterator[Text]:
    """Yield the visible texts; matplotlib also keeps tick labels outside of the axis limits."""
    yield from figure.texts
    yield from (text for legend in figure.legends for text in legend.get_texts())
    for ax in figure.axes:
        yield from (ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, *ax.texts)  # type: ignore[attr-defined]
        for axis in (ax.xaxis, ax.yaxis):
            yield from (tick.label1 for tick in axis._update_ticks() if tick.label1.get_visible())  # type: ignore[attr-defined]


def test_ranks_mark_variants_that_were_not_tested() -> None:
    made = [make_record(model, seed=seed) for model in ("transformer", "performer") for seed in range(3)]
    figure, _ = one("ranks", [*made, make_record("local")])
    (mark,) = [text for text in figure.axes[0].texts if text.get_gid() == "untested"]
    middles = {tick.get_text(): tick.get_position()[1] for tick in figure.axes[0].get_yticklabels()}
    assert mark.xy[1] == middles["Local"]
    assert "fewer than 3 seeds" in " ".join(written(figure))
    figure, _ = one("ranks", made)
    assert "fewer than 3 seeds" not in " ".join(written(figure))


@pytest.mark.parametrize("width", style.WIDTHS.values(), ids=style.WIDTHS)
def test_points_of_all_systems_fit_a_page(width: float) -> None:
    check_layout("score_vs_speed", many(76, ("listops",)), width)


def test_the_settings_of_matplotlib_are_not_changed(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    draw("extrapolation", [make_record()], tmp_path)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_figures_do_not_use_pyplot(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.figures.test_figures import OF_ONE_LENGTH, records, sheets, stored\n"
        f"made = stored(records(), Path({str(tmp_path)!r}))\n"
        "for name in OF_ONE_LENGTH: sheets(name, made)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("name", "folder", "width", "message"),
    [
        ("rank", "figures", "two", "plot rank: unknown figure"),
        ("ranks", "figures", "three", "--width three: unknown width"),
        ("ranks", "file/figures", "two", "--output .*file/figures: cannot be written"),
    ],
)
def test_options_are_checked_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str, width: str, message: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(figures, "tabulate", lambda *arguments: pytest.fail("computed"))
    with pytest.raises(UserError, match=message):
        figures.draw(name, [make_record()], tmp_path / folder, width)
    assert not (tmp_path / "figures").exists()
