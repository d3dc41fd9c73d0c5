"""Machines with the same hardware name are distinguished, and seeds of several machines are combined."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.figures import tabulate, variants
from lra_bench.page.page import page
from lra_bench.records import store
from lra_bench.records.machines import CEILING, CUT, ceiling_groups, combine_machines, name_machines
from lra_bench.records.schema import Record
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.overview import SEVERAL
from lra_bench.tables.seeds import is_known
from lra_bench.tables.table import leaderboard
from tests.support.page_records import data_of
from tests.support.record_factory import make_record


def with_ceiling(flops: float | None, model: str = "local", seed: int = 0, **options: object) -> Record:
    record = make_record(model, seed=seed, hardware="cpu-xeon-6-143-8-vm-2t", **options)
    record.environment["hardware"][CEILING] = flops
    return record


@given(st.lists(st.floats(1e9, 1e15), max_size=30), st.floats(0.1, 10))
def test_groups_are_cut_where_a_neighbour_is_more_than_20_percent_higher(values: list[float], scale: float) -> None:
    groups = ceiling_groups(values)
    assert list(itertools.chain(*groups)) == sorted(values)
    for group in groups:
        assert all(high <= CUT * low for low, high in itertools.pairwise(group))
    assert all(after[0] > CUT * before[-1] for before, after in itertools.pairwise(groups))
    assert ceiling_groups(reversed(values)) == groups
    lengths = [len(group) for group in ceiling_groups([1.0 * value for value in values])]
    assert lengths == [len(group) for group in groups]


@pytest.fixture
def two_machines(tmp_path: Path) -> list[Record]:
    """Return records of two processors that report the same masked name, of which one is twice as fast."""
    slow = [with_ceiling(100e9 + seed * 1e9, model, seed) for model in ("transformer", "local") for seed in (0, 1)]
    fast = [with_ceiling(200e9, model, seed, hash="ffff0000") for model in ("transformer", "local") for seed in (0, 1)]
    for record in [*slow, *fast]:
        store.write(record, tmp_path)
    return store.load_all(tmp_path)


@pytest.mark.slow
def test_two_masked_processors_with_other_ceilings_share_no_row(two_machines: list[Record]) -> None:
    names = {"cpu-xeon-6-143-8-vm-2t-101gflops", "cpu-xeon-6-143-8-vm-2t-200gflops"}
    assert {record.machine for record in two_machines} == names
    table = leaderboard(two_machines)
    assert len(table) == 4 and set(table["hardware"]) == names
    wide = LAYOUTS["wide"].make(two_machines)
    assert set(wide.loc[wide["kind"] == "measured", "hardware"]) == names
    places = variants.places(two_machines)
    assert places.groupby("hash")["hardware"].nunique().eq(1).all() and set(places["hardware"]) == names
    html = page(two_machines, {name: layout.make(two_machines) for name, layout in LAYOUTS.items()})
    [protocol] = data_of(html)["protocols"]
    rows = [row for body in protocol["systems"]["bodies"] for row in body["rows"]]
    assert {row["hardware"] for row in rows if row["part"]} == names
    combined = [row for row in rows if not row["part"]]
    assert {row["hardware"] for row in combined} == {SEVERAL}
    assert not any({"relative_speed", "relative_memory"} & row["cells"].keys() for row in combined)


def test_one_machine_keeps_its_name() -> None:
    records = [with_ceiling(flops, seed=seed) for seed, flops in enumerate((100e9, 115e9, 130e9, None))]
    name_machines(records)
    assert {record.machine for record in records} == {"cpu-xeon-6-143-8-vm-2t"}


def test_a_record_without_a_ceiling_belongs_to_its_cell_or_to_the_largest_group() -> None:
    records = [
        *(with_ceiling(100e9, seed=seed) for seed in range(2)), with_ceiling(300e9, "performer"),
        with_ceiling(None, "performer", seed=1), with_ceiling(None, "linear"),
    ]  # fmt: skip
    name_machines(records)
    assert [record.machine_suffix for record in records] == [
        "-100gflops", "-100gflops", "-300gflops", "-300gflops", "-100gflops",
    ]  # fmt: skip


def test_records_of_a_board_are_never_of_the_users_machine() -> None:
    own, board = with_ceiling(100e9), with_ceiling(100e9)
    board.reference = "board"
    assert own.machine != board.machine == "cpu-xeon-6-143-8-vm-2t@board"


def of_machines(seeds: dict[str, range], model: str = "local") -> list[Record]:
    return [
        make_record(model, seed=seed, hardware=machine, accuracy=0.5 + 0.01 * seed)
        for machine, own in seeds.items()
        for seed in own
    ]


def test_seeds_on_different_machines_are_in_one_row() -> None:
    records = of_machines({"cpu-a-1t": range(3), "cpu-b-1t": range(3, 5)})
    [row] = leaderboard(records).to_dict("records")
    assert (row["hardware"], row["seeds"], row["interval"]) == ("2 machines", 5, "5 seeds")
    assert row["seed_scores"] == tuple(0.5 + 0.01 * seed for seed in range(5))
    wide = LAYOUTS["wide"].make(records)
    assert wide.loc[wide["kind"] == "measured", "seeds_listops"].tolist() == [5]
    assert tabulate("extrapolation", records)["seeds"].unique().tolist() == [5]
    html = page(records, {name: layout.make(records) for name, layout in LAYOUTS.items()})
    [task] = data_of(html)["protocols"][0]["tasks"]
    assert [row["seeds"] for row in task["bodies"][0]["rows"]] == [5]


def test_machines_that_share_a_seed_have_rows_of_their_own() -> None:
    records = of_machines({"cpu-a-1t": range(3), "cpu-b-1t": range(2, 5)})
    assert combine_machines(records) == records
    assert leaderboard(records)["seeds"].tolist() == [3, 3]


def test_rows_of_several_machines_have_no_speed() -> None:
    records = of_machines({"cpu-a-1t": range(1), "cpu-b-1t": range(1, 2)})
    for record in records:
        record.environment["hardware"]["load_average_1_minute"] = 0.0
    alone, [combined] = leaderboard(records[:1]).iloc[0], leaderboard(records).to_dict("records")
    for name in ("train_tokens_per_second", "training_tokens_per_second", "train_time_exponent", "relative_speed"):
        assert is_known(alone[name]) and not is_known(combined[name])
    records[1].profiled = None
    assert leaderboard(records)["relative_speed"].tolist() == [alone["relative_speed"]]
    timed = tabulate("score_vs_speed", records)
    assert sorted(timed["hardware"]) == ["cpu-a-1t", "cpu-b-1t"]
