"""The figure of the gain of self-pretraining over training from scratch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lra_bench.figures import NothingToDrawError, draw, figure, tabulate
from lra_bench.records.schema import Record
from lra_bench.tables.table import leaderboard
from tests.figures.test_figures import legend, sheets
from tests.support.record_factory import make_record
from tests.tables.test_pretraining import SEEDS, board, pretrained


def test_gains_are_those_of_the_leaderboard_with_an_interval_over_seeds() -> None:
    data = tabulate("gain", board()).set_index(["section", "model"])
    rows = leaderboard(board()).set_index(["section", "model"])
    assert set(data.index) == {("masked", "transformer"), ("masked", "s4"), ("causal", "transformer")}
    for at in data.index:
        row, expected = data.loc[at], rows.loc[at]
        assert row["gain"] == pytest.approx(expected["difference"])
        assert (row["low"], row["high"]) == pytest.approx((expected["difference_low"], expected["difference_high"]))
    assert list(data["unit"].unique()) == ["seeds"] and list(data["seeds"].unique()) == [5]
    assert data.loc[("masked", "s4"), "gains"] == pytest.approx([0.05 + seed / 80 - seed / 100 for seed in SEEDS])
    assert data.loc[("masked", "transformer"), "scratch"] == pytest.approx(0.52)


def test_lower_bits_are_a_gain() -> None:
    made = [*few(3), *(pretrained("s4", seed, 0.4) for seed in range(3))]
    for record in made:
        bits = 1.5 - 0.1 * record.key.seed - (0.2 if record.measured else 0.0)
        record.metrics = {"test": {"bits_per_character": bits, "loss": 1.0, "n": 900, "low": 1.0, "high": 2.0}}
    (row,) = tabulate("gain", made).to_dict("records")
    assert (row["metric"], row["gain"]) == ("bits_per_character", pytest.approx(0.2))
    assert row["gains"] == pytest.approx([0.2, 0.2, 0.2]) and row["scratch"] == pytest.approx(1.4)


def few(seeds: int) -> list[Record]:
    return [make_record("s4", seed=seed, accuracy=0.5) for seed in range(seeds)]


def test_records_without_a_counterpart_are_excluded_with_the_reason() -> None:
    made = [*few(2), pretrained("s4", 0, 0.6), pretrained("lstm", 0, 0.6), make_record("transformer")]
    failed = make_record("performer", status="diverged")
    assert figure("gain").exclusions([*made, failed]) == [
        *("", "", "", "without the same cell from scratch", "without a pretrained cell", "without a score"),
    ]
    (row,) = tabulate("gain", made).to_dict("records")
    assert row["seeds"] == 1 and row["gain"] == pytest.approx(0.1)
    with pytest.raises(NothingToDrawError, match=r"plot gain: no record to draw .*pretrain=none,masked"):
        tabulate("gain", few(2))


def test_each_objective_has_a_sheet_and_rows_are_in_the_order_of_their_gains() -> None:
    found = {sheet.parts[1]: sheet for sheet in sheets("gain", board())}
    assert set(found) == {"masked", "causal"}
    (page,) = found["masked"].pages
    (ax,) = page.axes
    data = found["masked"].data.sort_values("gain", ascending=False)
    assert [text.get_text() for text in ax.get_yticklabels()] == list(data["label"])
    places = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 1 and line.get_marker() != "."]
    assert set(np.round(100 * data["gain"], 6)) <= set(np.round(places, 6))
    (zero,) = [line for line in ax.lines if line.get_gid() == "zero"]
    assert list(zero.get_xdata()) == [0.0, 0.0] or set(zero.get_xdata()) == {0.0}
    assert sum(line.get_gid() == "seed" for line in ax.lines) == 2
    explained = [*legend(page), *found["masked"].notes]
    assert any("95 % confidence interval over seeds" in text for text in explained)


def test_files_are_drawn_in_both_widths(tmp_path: Path) -> None:
    for width in ("one", "two"):
        written = draw("gain", board(), tmp_path / width, width)
        assert {"gain-quick-masked.png", "gain-quick-causal.png"} <= {path.name for path in written}
