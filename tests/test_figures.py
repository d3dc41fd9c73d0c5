"""Figures: what they show is what was recorded, they read well, and they rebuild to the byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import ModuleType

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from lra_bench.contracts import UserError
from lra_bench.figures import draw_all, evaluation_knobs, extrapolation, loss_by_position, speed_vs_length, style
from lra_bench.records.extrapolation import section
from lra_bench.records.schema import Record

from .record_factory import LENGTHS, MODELS, RATIOS, make_record

FIGURES = (extrapolation, evaluation_knobs, loss_by_position, speed_vs_length)


def records() -> list[Record]:
    return [
        *[make_record(model, seed=seed) for model in ("local", "performer", "bag_of_tokens") for seed in range(3)],
        make_record("transformer", speed_failures={16384: "out_of_memory"}),
        make_record("reformer", status="diverged", speed_failures={1024: "timeout"}),
        make_record("performer", hash="ffff0000", differences={"model.mixer.features": 64}, position="rope"),
    ]


def many() -> list[Record]:
    return [
        *records(),
        *[with_knobs(make_record(model, task=task)) for model in MODELS for task in ("text", "image", "retrieval")],
        make_record("local", hardware="h200-bf16"),
    ]


def with_knobs(record: Record) -> Record:
    """The record with curves of two knobs, and with losses by position as a language model has them."""
    old = record.extrapolation
    assert old is not None
    turned = [
        {**point, "knob": knob, "score": 0.3 + 0.01 * number}
        for number, knob in enumerate(("position.scaling=yarn", "model.mixer.log_n=true"))
        for point in old["points"]
        if point["ratio"] > 1
    ]
    rows = [
        {"knob": "", "ratio": ratio, "length": int(500 * ratio), "first": last // 2 + 1, "last": last,
         "n": 10 * last, "bits_per_character": 3 - 0.1 * last**0.2}
        for ratio in (1.0, 2.0)
        for last in (1, 2, 4, 125, 250, 500, 1000)
        if last <= 500 * ratio
    ]  # fmt: skip
    record.extrapolation = section(500, [*old["points"], *turned], rows, old["attempts"], True)
    return record


def test_knobs_have_a_panel_for_each_trained_variant_and_stay_out_of_the_other_figure() -> None:
    cells = [with_knobs(make_record()), with_knobs(make_record("local")), make_record("transformer")]
    figure, data = evaluation_knobs.draw(cells)
    assert [ax.get_title() for ax in figure.axes] == ["listops · quick\nlocal", "listops · quick\nperformer"]
    assert set(data["setting"]) == {"as trained", "position.scaling=yarn", "model.mixer.log_n=true"}
    ratios = data[data["model"] == "local"].groupby("setting")["ratio"].apply(list)
    assert ratios["as trained"] == ratios["position.scaling=yarn"] == [1.0, 2.0, 4.0, 8.0]
    _, plain = extrapolation.draw(cells)
    assert set(plain["knob"]) == {""} and set(plain["model"]) == {"local", "performer", "transformer"}
    _, nothing = evaluation_knobs.draw([make_record()])
    assert nothing.empty


def test_losses_by_position_are_means_over_seeds_at_the_end_of_their_bins() -> None:
    cells = [with_knobs(make_record(seed=seed)) for seed in (0, 1)]
    for row in cells[1].extrapolation["by_position"]:
        row["bits_per_character"] += 1
    figure, data = loss_by_position.draw(cells)
    assert len(figure.axes) == 1 and len(figure.axes[0].lines) == 3
    at = data[(data["ratio"] == 2) & (data["last"] == 1000)].iloc[0]
    assert at["bits_per_character"] == pytest.approx(3.5 - 0.1 * 1000**0.2) and at["seeds"] == 2


def test_figures_with_nothing_to_show_are_left_out_where_all_are_asked_for(tmp_path: Path) -> None:
    names = [paths[0].stem for paths in draw_all([make_record()], tmp_path)]
    assert names == ["extrapolation", "speed_vs_length"]
    names = [paths[0].stem for paths in draw_all([with_knobs(make_record())], tmp_path)]
    assert names == ["extrapolation", "evaluation_knobs", "loss_by_position", "speed_vs_length"]


def test_more_variants_than_kinds_of_lines_are_told_apart() -> None:
    variants = [("transformer", f"transformer · heads={heads}") for heads in range(9)]
    assert len({(look.line, look.hollow) for look in style.looks(variants).values()}) == 9


def test_many_changed_keys_are_counted() -> None:
    keys = ["task.rows", "train.lr", "train.steps"]
    _, data = extrapolation.draw([make_record(protocol_modified=keys)])
    assert set(data["label"]) == {"performer (3 keys changed)"}


def test_extrapolation_shows_means_with_their_intervals() -> None:
    _, data = extrapolation.draw(records())
    local = data[data["variant"] == "local"].set_index("ratio")
    assert list(local.index) == list(RATIOS)
    at2 = [record.extrapolation["points"][2] for record in records() if record.key.model == "local"]
    assert local.loc[2.0, "score"] == pytest.approx(np.mean([point["score"] for point in at2]))
    assert (local.loc[2.0, "interval"], local.loc[2.0, "seeds"]) == ("seeds", 3)
    one = data[data["variant"] == "transformer"].set_index("ratio").loc[4.0]
    point = make_record("transformer").extrapolation["points"][3]
    assert (one["low"], one["score"], one["high"]) == (point["low"], point["score"], point["high"])
    assert one["floor"] == point["floor"]
    assert "reformer" not in set(data["model"])


def test_extrapolation_draws_floor_training_length_and_a_line_per_variant() -> None:
    figure, data = extrapolation.draw(records())
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    labels = {container.get_label() for container in ax.containers}
    assert labels == set(data["label"])
    floors = [line for line in ax.lines if line.get_label() == "floor: root operator"]
    expected = [100 * point["floor"] for point in make_record().extrapolation["points"]]
    np.testing.assert_allclose(floors[0].get_ydata(), expected)
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ax.lines)


def test_one_panel_per_task_and_protocol() -> None:
    figure, _ = extrapolation.draw([*many(), make_record(protocol="small")])
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["image · quick", "listops · quick", "listops · small", "retrieval · quick", "text · quick"]


def test_other_ways_to_lengthen_have_panels_of_their_own_that_share_the_training_length() -> None:
    record = make_record(task="text")
    points = record.extrapolation["points"]
    points[:] = [{**point, "variant": "truncated"} for point in points]
    points += [{**point, "variant": "filler", "score": 0.2} for point in points if point["ratio"] > 1]
    figure, data = extrapolation.draw([record])
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == [
        "text · quick · filler",
        "text · quick · truncated",
    ]
    ratios = data.groupby("length_variant")["ratio"].apply(list)
    assert ratios["truncated"] == list(RATIOS) and ratios["filler"] == [1.0, 2.0, 4.0, 8.0]
    assert set(data[(data["length_variant"] == "filler") & (data["ratio"] > 1)]["score"]) == {0.2}


def test_speed_shows_medians_and_names_failures() -> None:
    figure, data = speed_vs_length.draw(records())
    trained = data[(data["variant"] == "transformer") & (data["mode"] == "train")].set_index("length")
    assert list(trained.index) == list(LENGTHS)
    points = {point["length"]: point for point in make_record("transformer").speed if point["mode"] == "train"}
    assert trained.loc[2048, "median_seconds"] == points[2048]["median_seconds"]
    assert trained.loc[2048, "peak_resident_growth_bytes"] == points[2048]["peak_resident_growth_bytes"]
    assert trained.loc[16384, "status"] == "out_of_memory" and pd.isna(trained.loc[16384, "median_seconds"])
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert texts.count("transformer: out of memory") == 2 and texts.count("reformer: time limit") == 2
    assert any("performer" in text and "N^{1.00}" in text for text in texts)


def test_a_single_length_still_has_numbers_on_its_axes() -> None:
    record = make_record(growth={})
    record.speed = [point for point in record.speed if point["length"] == 1024]
    record.speed[0]["peak_resident_growth_bytes"] = 0
    figure, _ = speed_vs_length.draw([record])
    with style.style():
        figure.draw_without_rendering()
    for ax in figure.axes:
        bottom, top = ax.get_ylim()
        assert sum(bottom <= tick <= top for tick in ax.get_yticks()) >= 3
    assert not figure.legends[0].get_title().get_text()


def test_machines_and_batch_sizes_never_share_a_panel() -> None:
    wide = make_record("local", seed=1)
    for point in wide.speed:
        point["batch_size"] = 32
    figure, _ = speed_vs_length.draw([make_record(), make_record(hardware="h200-bf16"), wide])
    assert [text.get_text() for text in figure.texts] == [
        "cpu-epyc-2t · listops · quick · batch 1",
        "cpu-epyc-2t · listops · quick · batch 32",
        "h200-bf16 · listops · quick · batch 1",
    ]


def test_variants_that_share_a_name_are_told_apart() -> None:
    changes = ({"hash": "aaaa0000"}, {"hash": "bbbb0000"}, {"protocol_modified": ["train.lr"]})
    alike = [with_knobs(make_record(**change)) for change in changes]
    for figure in FIGURES:
        _, data = figure.draw(alike)
        assert set(data["label"]) == {"performer #aaaa0000", "performer #bbbb0000", "performer (train.lr changed)"}


def test_a_model_looks_the_same_whatever_else_is_drawn() -> None:
    alone = style.looks([("mamba", "mamba")])["mamba", "mamba"]
    among = style.looks([(name, name) for name in (*style.KNOWN, "mamba", "rwkv", "zebra")])
    assert among["mamba", "mamba"] == alone
    variants = style.looks([("mamba", "mamba"), ("mamba", "mamba · state=64")])
    assert {(look.colour, look.marker) for look in variants.values()} == {(alone.colour, alone.marker)}
    assert len({look.line for look in variants.values()}) == 2
    known = [style.colour_and_marker(name) for name in (style.REFERENCE, *style.CONTROLS, *style.KNOWN)]
    assert len(set(known)) == len(known)


def channel(colour: str, weights: tuple[float, float, float]) -> float:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return sum(weight * part**2.2 for weight, part in zip(weights, (red, green, blue), strict=True))


def test_colours_differ_for_readers_who_confuse_red_and_green() -> None:
    """In the plane that deuteranopes see (Viénot et al. 1999), no two colours fall together."""
    seen = {
        colour: (channel(colour, (0.2927, 0.7073, 0.0)), channel(colour, (-0.0223, 0.0223, 1.0)))
        for colour in (*style.COLOURS, style.BLACK)
    }
    for one, other in combinations(seen, 2):
        assert np.hypot(*np.subtract(seen[one], seen[other])) > 0.05, (one, other)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda module: module.__name__)
@pytest.mark.parametrize("cells", [records, list], ids=lambda cells: cells.__name__)
def test_files_appear_and_rebuild_to_the_byte(figure: ModuleType, cells, tmp_path: Path) -> None:
    written = []
    for folder in ("one", "two"):
        drawn, data = figure.draw(cells())
        paths = style.save(drawn, data, tmp_path / folder, "name")
        assert [path.name for path in paths] == ["name.pdf", "name.png", "name.csv"]
        assert sorted(paths) == sorted((tmp_path / folder).iterdir())
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    assert b"CreationDate" not in written[0][0]


def test_an_unwritable_folder_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--output"):
        style.save(*extrapolation.draw([]), tmp_path / "file", "name")


@pytest.mark.parametrize(
    ("figure", "cells"),
    [*((figure, many) for figure in FIGURES), (extrapolation, records), (speed_vs_length, records)],
    ids=lambda value: value.__name__,
)
def test_nothing_is_cut_off_or_written_over_something_else(figure: ModuleType, cells) -> None:
    drawn, _ = figure.draw(cells())
    with style.style():
        drawn.draw_without_rendering()
    page = drawn.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown(drawn) if text.get_text().strip()]
    assert len(boxes) > 10
    for name, box in boxes:
        assert page.x0 - 1 <= box.x0 and box.x1 <= page.x1 + 1, name
        assert page.y0 - 1 <= box.y0 and box.y1 <= page.y1 + 1, name
    for (one, first), (other, second) in combinations(boxes, 2):
        assert not first.padded(-0.5).overlaps(second.padded(-0.5)), (one, other)
    for legend in drawn.legends:
        for ax in drawn.axes:
            assert not legend.get_window_extent().overlaps(ax.bbox)


def shown(figure: Figure) -> Iterator[Text]:
    """Texts that are drawn; matplotlib keeps tick labels outside their axis too."""
    yield from figure.texts
    for legend in figure.legends:
        yield from (legend.get_title(), *legend.get_texts())
    for ax in figure.axes:
        yield from (ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts)
        for axis in (ax.xaxis, ax.yaxis):
            yield from (tick.label1 for tick in axis._update_ticks() if tick.label1.get_visible())  # type: ignore[attr-defined]


def test_the_settings_of_matplotlib_are_left_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    for figure in FIGURES:
        drawn, data = figure.draw([make_record()])
        style.save(drawn, data, tmp_path, "name")
    assert dict(matplotlib.rcParams) == before


def test_figures_stay_out_of_pyplot_and_its_global_state() -> None:
    program = (
        "import sys; from tests.test_figures import FIGURES, make_record\n"
        "for figure in FIGURES: figure.draw([make_record()])\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent)
