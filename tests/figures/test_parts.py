"""Parts of figures: looks of models, ties, crossover lengths, labels of points, legends."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

from lra_bench.config.listing import options
from lra_bench.figures import layout, legend, palette, style
from lra_bench.figures.curves import FAINT
from lra_bench.figures.heat_maps import heat_map
from lra_bench.figures.palette import look, looks
from lra_bench.figures.ranks import ranks
from lra_bench.figures.scatter import LEADER_INCHES, place
from lra_bench.figures.task_table import parts_of_rows, row_edges
from lra_bench.tables.claims import key_of, rankings, tie_letters
from lra_bench.tables.seeds import over_seeds
from lra_bench.tables.table import leaderboard
from tests.tables.test_claims import simulated

LENGTHS = (1024, 2048, 4096, 8192)


WORDS = ["Transformer", "·", "embedding.kind=factorised", "(4", "keys", "changed)"]


@pytest.fixture(scope="module")
def systems() -> list[tuple[str, str]]:
    """Return the name and family of every system."""
    return [(row["name"], row["family"]) for row in options("models", declared=True)]


def test_marker_and_line_style_identify_every_system(systems) -> None:
    """Systems must be distinguishable in greyscale. Add a new system to the end of its family in figures/palette.py."""
    found: dict[tuple[str, bool, str], str] = {}
    for model, family in systems:
        seen = look(model, family)
        other = found.setdefault((seen.marker, seen.filled, str(seen.line)), model)
        assert other == model, f"{model} and {other} have the same look in greyscale"


def test_colours_contrast_with_paper_and_faint_lines(systems) -> None:
    """The contrast depends on luminance only, so the test applies to greyscale, too."""
    for model, family in systems:
        colour = look(model, family).colour
        assert palette.contrast(colour, palette.WHITE) >= 2.2, model
        assert palette.contrast(colour, FAINT) >= 1.4, model


def test_families_share_a_hue_and_match_the_palette(systems) -> None:
    for model, family in systems:
        assert palette.PLACES.get(model, (family,))[0] == family
        if model not in (palette.REFERENCE, "bag_of_tokens"):
            shades = {palette._shade(palette.FAMILIES[family].hue, step) for step in range(3)}
            assert look(model, family).colour in shades


def test_the_look_of_a_model_is_independent_of_other_models() -> None:
    alone = looks([("mamba", "state_space", "mamba")])["mamba", "mamba"]
    others = [("mamba", "state_space", "mamba · state=64"), ("zebra", "zoo", "zebra"), ("local", "sparse", "local")]
    among = looks([("mamba", "state_space", "mamba"), *others])
    assert among["mamba", "mamba"] == alone
    varied = among["mamba", "mamba · state=64"]
    assert (varied.colour, varied.marker, varied.filled) == (alone.colour, alone.marker, alone.filled)
    assert varied.line != alone.line


def test_more_variants_than_line_styles_have_distinct_looks() -> None:
    for model, family in (("transformer", "full"), ("local", "sparse"), ("zebra", "zoo")):
        found = looks((model, family, f"{model} · heads={heads}") for heads in range(9))
        assert len({(look.line, look.filled) for look in found.values()}) == 9


# Simulation of colour vision deficiency in linear RGB, severity 1 (Machado et al. 2009).
COLOUR_VISION = {
    "all": np.eye(3),
    "deuteranopes": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "protanopes": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
}


def lab(linear: np.ndarray) -> np.ndarray:
    """Convert linear RGB to CIE L*a*b* (D65)."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear.clip(0, 1) / (0.9505, 1.0, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("readers", COLOUR_VISION)
def test_hues_are_distinguishable_with_colour_vision_deficiency(readers: str) -> None:
    """The smallest noticeable difference is 2.3; hues must differ by more than 10."""
    seen = {}
    for hue in (*(family.hue for family in palette.FAMILIES.values()), palette.BLACK):
        channels = np.array([int(hue[start : start + 2], 16) / 255 for start in (1, 3, 5)])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        seen[hue] = lab(COLOUR_VISION[readers] @ linear)
    for first, second in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 10, (first, second)


def test_ties_are_those_of_the_claims(tmp_path: Path) -> None:
    made = simulated(tmp_path, 3)
    [ranking] = rankings(made).values()
    letters = tie_letters(ranking)
    [sheet] = ranks.draw(ranks.table(made), style.PAGE_INCHES)
    shown = dict(zip(sheet.data["model"], sheet.data["ties"], strict=True))
    for record in made:
        own = letters.get(key_of(record), "")
        for other in made:
            common = set(own) & set(letters.get(key_of(other), ""))
            assert bool(common) == bool(set(shown[record.key.model]) & set(shown[other.key.model]))
    assert set("".join(shown.values()))
    tags = [text.get_text() for page in sheet.pages for ax in page.axes for text in ax.texts if text.get_gid() == "tie"]
    assert tags == [letters for letters in sheet.data["ties"] if letters]


@pytest.mark.slow
def test_bold_scores_of_the_heat_map_are_those_of_the_table(tmp_path: Path) -> None:
    for draw in range(6):
        made = simulated(tmp_path / str(draw), draw)
        table = leaderboard(made)
        expected = set(table.loc[table["best"], "variant"])
        data = heat_map.table(made)
        assert set(data.loc[data["best"] == True, "variant"]) == expected  # noqa: E712


def test_columns_of_several_seeds_are_combined_as_declared() -> None:
    points = pd.DataFrame(
        {
            "model": "local", "seed": range(3), "score": [0.4, 0.5, 0.6], "low": [0.38, 0.48, 0.58],
            "high": [0.42, 0.52, 0.62], "metric": "accuracy", "floor": [0.1, 0.2, 0.3], "speed": [10.0, 20.0, 60.0],
            "floor_name": ["a", "a", "b"], "status": "ok", "failure": [None, "x", "y"],
        }
    )  # fmt: skip
    [row] = over_seeds(points, ["model"], {"failure": "first"}).to_dict("records")
    assert (row["score"], row["speed"], row["floor"]) == pytest.approx((0.5, 30.0, 0.2))
    assert pd.isna(row["floor_name"]) and (row["status"], row["failure"], row["seeds"]) == ("ok", "x", 3)
    assert (row["interval"], row["seed_scores"]) == ("each", (0.4, 0.5, 0.6)) and math.isnan(row["low"])


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_labels_overlap_neither_points_nor_each_other(seed: int) -> None:
    points = np.random.default_rng(seed).uniform(size=(12, 2))
    figure = Figure(figsize=(5, 4))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.1, 0.125, 0.8, 0.75))
    ax.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
    place(ax, points[:, 0], points[:, 1], [str(number) for number in range(12)], ["black"] * 12)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    for first, second in itertools.combinations(boxes, 2):
        assert not first.padded(-0.5).overlaps(second.padded(-0.5))
    centres = ax.transData.transform(points)
    assert not any(box.contains(*centre) for box in boxes for centre in centres)


def test_labels_do_not_overlap_lines() -> None:
    x, y = np.array([0.2, 0.5, 0.8]), np.array([0.2, 0.5, 0.3])
    lines = [
        np.column_stack([x, y]),
        *(np.array([[at, up - 0.15], [at, up + 0.15]]) for at, up in zip(x, y, strict=True)),
    ]
    figure = Figure(figsize=(5, 4))
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0.1, 0.125, 0.8, 0.75))
    ax.set(xlim=(0, 1), ylim=(0, 1))
    place(ax, x, y, ["performer", "nystrom", "local"], ["black"] * 3, lines)
    figure.draw_without_rendering()
    for line in lines:
        shares = np.linspace(0, 1, 500)[:, None]
        along = np.vstack([begin + shares * (end - begin) for begin, end in itertools.pairwise(line)])
        for text in ax.texts:
            assert text.get_window_extent().count_contains(ax.transData.transform(along)) == 0, text


@given(st.text("AVTfiWoy. ·=", min_size=1, max_size=30))
def test_the_width_of_a_text_is_that_of_its_layout_up_to_kerning(text: str) -> None:
    with style.style():
        font = FontProperties(size=style.SMALL)
        drawn = RendererAgg(1, 1, 300).get_text_width_height_descent(text, font, False)[0] / 300
    assert -0.01 <= style.text_inches(text) - drawn <= 0.02 * len(text)


def test_the_cached_width_of_a_text_is_independent_of_the_active_style():
    text = "fewer than 3 seeds: not tested"
    style._em.cache_clear()
    outside = style.text_inches(text)
    style._em.cache_clear()
    with style.style():
        assert style.text_inches(text) == outside


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=150))
def test_rows_whose_names_have_several_lines_are_divided_into_parts_that_fit_on_a_page(counts: list[int]) -> None:
    keys = [("transformer", f"{number} " + " ".join((WORDS * 6)[:count])) for number, count in enumerate(counts)]
    parts = list(parts_of_rows(keys, room=1.4))
    assert list(itertools.chain(*parts)) == keys
    heights = [row_edges(part, 1.4)[-1] for part in parts]
    assert max(heights) < 0.95 * style.PAGE_HEIGHT_INCHES
    assert len(parts) <= 1 + sum(heights) / (0.5 * style.PAGE_HEIGHT_INCHES)


def test_the_legend_of_a_page_explains_the_curves_of_its_panels_only() -> None:
    panels = [layout.Panel(name, lambda ax: None, 5.0, curves=frozenset({name})) for name in ("one", "two")]
    names = [legend.Entry(f"the curve {name}", {}, short=name) for name in ("one", "two")]
    others = legend.Entry("other variants", {})
    drawn, _ = layout.pages(panels, style.COLUMN_INCHES, 1, ["quick", ""], [*names, others], [])
    found = [[text.get_text() for text in page.legends[0].get_texts()] for page in drawn]
    assert found == [["the curve one", "other variants"], ["the curve two", "other variants"]]


def test_a_title_beside_long_names_of_rows_is_not_cut_off() -> None:
    def draw(ax: Axes) -> None:
        ax.set_yticks([0], ["the name of a row, half as wide as the page"])

    title = "pathfinder · not learned at this budget"
    drawn, _ = layout.pages([layout.Panel(title, draw)], style.COLUMN_INCHES, 1, ["quick", ""], [], [])
    [page] = drawn
    [text] = [text for text in page.findobj(Text) if text.get_text() == title]
    box = text.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= page.bbox.width


@pytest.mark.parametrize("seed", range(6, 12))
def test_labels_are_nearest_to_their_own_point_or_connected_to_it(seed: int) -> None:
    x, y = np.random.default_rng(seed).uniform(0.1, 0.9, (2, 8))
    figure = Figure((4, 3), dpi=100)
    canvas = FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 1), ylim=(0, 1))
    place(ax, x, y, [f"name {number}" for number in range(8)], ["black"] * 8)
    canvas.draw()
    points = ax.transData.transform(np.column_stack([x, y]))
    assert len(ax.texts) == 8
    for text in ax.texts:
        box = text.get_window_extent()
        outside = np.maximum(np.array(box.min) - points, points - np.array(box.max)).clip(0)
        away, own = np.hypot(*outside.T) / figure.dpi, int(text.get_text()[5:])
        assert away.argmin() == own or away[own] > 0.9 * LEADER_INCHES
