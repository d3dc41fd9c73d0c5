"""Comparison of two variants: selection by name, pairing of examples, tests and verdicts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.signal import lfilter

from lra_bench.cli import main
from lra_bench.contracts import UserError
from lra_bench.records import store, tables
from lra_bench.records.schema import Record
from lra_bench.statistics.blocks import block_interval, block_test
from lra_bench.statistics.paired import mcnemar, paired_t, swap_test
from lra_bench.tables.claims import rankings
from lra_bench.tables.comparison import compare, report
from lra_bench.tables.naming import find_variant, select
from lra_bench.tables.pairing import pair
from lra_bench.tables.runs import Run
from tests.support.record_factory import make_point, make_record

ROWS = 400


def predictions(right: np.ndarray) -> pd.DataFrame:
    """Return predictions on the test split and at another length, which must be ignored."""
    own = pd.DataFrame({"variant": "redrawn", "length": 500, "row": np.arange(len(right)), "correct": right})
    longer = own.assign(length=1000, correct=1.0 - right)
    return pd.concat([own, longer]).assign(prediction=0, target=1, loss=0.5, scored=1)


def run_of(root: Path, model: str, seed: int, right: np.ndarray, **options: object) -> Record:
    record = make_record(model, seed=seed, accuracy=float(right.mean()), **options)
    store.write(record, root, None, predictions(right.astype(float)))
    return record


def simulate(
    root: Path, gap: float, seeds: int = 5, scatter: float = 0.004, start_b: int = 0, draw: int = 0
) -> list[Record]:
    """Write records in which ``local`` is better than ``performer`` by ``gap``.

    Args:
        root: The results folder.
        gap: The difference of expected accuracies.
        seeds: The number of seeds per model.
        scatter: The standard deviation of the accuracy over seeds.
        start_b: The first seed of ``performer``.
        draw: The random seed of the simulation. The difficulty of an example is the same for both models.

    Returns:
        The records of both models.
    """
    generator = np.random.default_rng(draw)
    base_difficulty = generator.uniform(size=ROWS)
    records = []
    for model, level, start in (("local", 0.5 + gap, 0), ("performer", 0.5, start_b)):
        for seed in range(start, start + seeds):
            difficulty = base_difficulty + generator.normal(0, 0.05, ROWS)
            records.append(run_of(root, model, seed, difficulty < level + generator.normal(0, scatter)))
    return records


@pytest.mark.parametrize("status", ["interrupted", "failed", "out_of_memory"])
def test_an_unfinished_run_does_not_hide_the_finished_row_of_a_board(tmp_path: Path, status: str) -> None:
    records = simulate(tmp_path, 0.1)
    for record in records:
        record.reference = "quick"
    own = make_record("performer", seed=0, status=status, path=tmp_path / "own.json")
    for named in ([], [own.path]):
        found = {"performer": named, "local": []}
        names = compare([own, *records], "performer", "local", paths=found.__getitem__)[:2]
        assert names[0].startswith("performer · reference") and names[1] == "local · reference"
    finished = replace(records[-1], reference="")
    assert compare([finished, *records], "performer", "local")[0] == "performer"


def test_a_clear_difference_is_reported_for_the_better_variant(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.1)
    name_a, name_b, [found] = compare(records, "performer", "local")
    assert (name_a, name_b, found.verdict, found.unit, found.paired) == ("performer", "local", "B", "seeds", True)
    by_model = {m: [r.score() for r in records if r.key.model == m] for m in ("performer", "local")}
    expected = stats.ttest_rel(by_model["performer"], by_model["local"])
    interval = expected.confidence_interval()
    assert (found.p_seeds, found.low, found.high) == pytest.approx((expected.pvalue, interval.low, interval.high))
    assert found.examples == ROWS and len(found.p_each_seed) == 5
    assert found.p == max(found.p_seeds, found.p_examples) == found.p_holm
    assert compare(records, "local", "performer")[2][0].verdict == "A"
    assert "local is better" in report(name_a, name_b, [found])


def test_no_difference_is_reported_with_the_detectable_difference(tmp_path: Path) -> None:
    name_a, name_b, [found] = compare(simulate(tmp_path, gap=0.0), "local", "performer")
    assert found.verdict == "no difference shown" and 0 < found.detectable < 0.1
    text = report(name_a, name_b, [found])
    assert f"{100 * found.detectable:.1f} points" in text and "80 % power" in text


def test_each_seed_has_a_test_of_its_own(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.03, seeds=3)
    a, b = ({r.key.seed: r for r in records if r.key.model == m} for m in ("local", "performer"))
    pairs, found = pair(a, b, [0, 1, 2]), compare(records, "local", "performer")[2][0]
    right = [
        [tables.predictions(side[seed]).query("length == 500")["correct"].to_numpy() for seed in range(3)]
        for side in (a, b)
    ]
    for seed in range(3):
        only_a, only_b = (((right[i][seed] > right[1 - i][seed]).sum()) for i in range(2))
        assert found.p_each_seed[seed] == mcnemar(int(only_a), int(only_b))
        assert pairs.differences[seed].tolist() == (right[0][seed] - right[1][seed]).tolist()


def test_false_positive_rate_of_equal_models_is_at_most_5_percent() -> None:
    generator = np.random.default_rng(0)
    claims = []
    for _ in range(400):
        base_difficulty = generator.uniform(size=300)
        difficulty = base_difficulty + generator.normal(0, 0.1, (2, 4, 300))
        right = (difficulty < 0.5 + generator.normal(0, 0.01, (2, 4, 1))).astype(float)
        differences = right[0] - right[1]
        p_examples = swap_test(differences.sum(axis=0))
        claims.append(max(float(paired_t(differences.mean(axis=1))), p_examples) <= 0.05)
    assert np.mean(claims) <= 0.05


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_result_in_no_claim(tmp_path: Path, seeds: int) -> None:
    name_a, name_b, [found] = compare(simulate(tmp_path, gap=0.2, seeds=seeds), "local", "performer")
    assert (found.verdict, found.p, found.detectable) == ("too few seeds", None, None)
    assert found.p_examples < 1e-3 and (found.unit, found.p_seeds) == ("examples", None)
    assert found.low < found.difference < found.high
    assert "3 are needed" in report(name_a, name_b, [found])


@pytest.mark.parametrize("seeds", [3, 4])
def test_fewer_than_five_seeds_result_in_a_claim_about_these_seeds_only(tmp_path: Path, seeds: int) -> None:
    name_a, name_b, [found] = compare(simulate(tmp_path, gap=0.2, seeds=seeds), "local", "performer")
    assert (found.verdict, found.every_seed, found.p, found.p_seeds) == (
        "A in every seed", True, found.p_examples, None,
    )  # fmt: skip
    assert f"local is better in each of {seeds} seeds" in report(name_a, name_b, [found])
    smaller = compare(simulate(tmp_path, gap=0.005, seeds=seeds, draw=3), "local", "performer")[2][0]
    assert smaller.p_holm > 0.01 and smaller.verdict == "no difference shown"


def test_a_claim_about_few_seeds_needs_the_same_sign_in_every_seed(tmp_path: Path) -> None:
    shared = np.random.default_rng(0).uniform(size=ROWS)
    levels = {"local": (0.9, 0.9, 0.50), "performer": (0.5, 0.5, 0.52)}
    records = [run_of(tmp_path, m, seed, shared < level) for m, own in levels.items() for seed, level in enumerate(own)]
    found = compare(records, "local", "performer")[2][0]
    assert found.p_holm < 0.001 and (found.every_seed, found.verdict) == (False, "no difference shown")


def test_a_seed_that_is_not_significantly_better_is_no_win(tmp_path: Path) -> None:
    rank = np.random.default_rng(0).permutation(1000)
    shifted = np.where(rank < 100, rank + 300, rank - 100 * (rank < 400))  # other examples are right
    wins = [(rank < 500, rank < 400), (rank < 500, rank < 400)]
    records = {}
    for name, third in (("close", (rank < 344, shifted < 339)), ("clear", (rank < 344, rank < 300))):
        seeds = [*wins, third]
        records[name] = [
            run_of(tmp_path / name, model, seed, right[side], floors={"majority": 0.1})
            for seed, right in enumerate(seeds)
            for side, model in enumerate(("local", "performer"))
        ]
    close, clear = (compare(records[name], "local", "performer")[2][0] for name in ("close", "clear"))
    assert [record.score() for record in records["close"][-2:]] == [0.344, 0.339] and close.p_each_seed[2] > 0.5
    assert close.p_holm < 1e-3 and (close.every_seed, close.verdict) == (False, "no difference shown")
    assert (clear.every_seed, clear.verdict) == (True, "A in every seed")
    pairs = {name: next(iter(rankings(records[name]).values())).separated() for name in records}
    assert [set(each.values()) for each in pairs.values()] == [{0}, {1, -1}]


def windows_of(root: Path, model: str, seed: int, nats: np.ndarray, write: bool = True) -> Record:
    """Return the record of a language model with these losses of windows of ten tokens."""
    bits = float(nats.mean() / 10 / np.log(2))
    metric = {"bits_per_character": bits, "loss": bits, "n": 10 * len(nats), "low": bits - 1e-6, "high": bits + 1e-6}
    record = make_record(model, "enwik8", seed, metrics={"test": metric}, floors={"order_2": 3.2}, extrapolation=None)
    table = predictions(np.zeros(len(nats))).assign(loss=np.tile(nats, 2), scored=10)
    if write:
        store.write(record, root, None, table)
    return record


def drifting(rows: int, seed: int) -> np.ndarray:
    """Return a series of mean 0 and variance 1 in which neighbours have a correlation of 0.9."""
    return lfilter([1], [1, -0.9], np.random.default_rng(seed).normal(size=rows)) * (1 - 0.9**2) ** 0.5


def test_windows_of_a_text_are_compared_by_a_test_for_dependent_windows(tmp_path: Path) -> None:
    text, difference = 12 + drifting(400, 0), drifting(400, 2)
    difference = 0.2 * (difference - difference.mean()) + 0.03
    records = [
        windows_of(tmp_path, model, seed, text + gap + 0.001 * seed)
        for model, gap in (("local", difference), ("performer", 0))
        for seed in range(5)
    ]
    found = compare(records, "local", "performer")[2][0]
    assert swap_test(difference) < 0.01 < found.p_examples and found.verdict == "no difference shown"
    p = block_test(difference, np.ones(400))
    assert [found.p_examples, found.p_each_seed[0]] == pytest.approx([p, p])
    run = Run(records[0])
    assert (run.test["low"], run.test["high"]) == block_interval((text + difference) / np.log(2), np.full(400, 10.0))


def test_scores_at_other_lengths_are_compared_with_the_floor_by_the_interval_of_their_windows(tmp_path: Path) -> None:
    nats = 22 + 2 * drifting(400, 0)
    record = windows_of(tmp_path, "local", 0, nats)  # the windows at the length 1000 have the same losses
    low, high = block_interval(nats / np.log(2), np.full(400, 10.0))
    point = make_point(0.5, 0.0, 2.0) | {"floor": high - 1e-4, "score": (low + high) / 2, "high": high - 1e-3}
    assert point["length"] == 1000 and Run(record).clears_floor_at(point | {"margins": {}}) is False
    assert Run(record).clears_floor_at(point | {"margins": {}, "floor": high + 1e-4}) is True
    assert Run(record).clears_floor_at(point | {"margins": {}, "length": 77}) is None


def test_nothing_is_claimed_about_language_models_without_their_windows(tmp_path: Path) -> None:
    records = [
        windows_of(tmp_path, model, seed, np.full(50, level + 0.01 * seed), write=False)
        for model, level in (("local", 11.0), ("performer", 13.0))
        for seed in range(5)
    ]
    name_a, name_b, [found] = compare(records, "local", "performer")
    assert (found.p, found.verdict) == (None, "not tested") and "no claim: windows" in report(name_a, name_b, [found])
    assert Run(records[0]).test["low"] is None and Run(records[0]).clears_floor is None
    accurate = [make_record(model, seed=seed) for model in ("local", "performer") for seed in range(5)]
    assert compare(accurate, "local", "performer")[2][0].p is not None


def test_nothing_is_claimed_about_scores_that_do_not_clear_the_floor(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.1)
    for record in records:
        record.floors["rule"] = 0.62
    name_a, name_b, [found] = compare(records, "local", "performer")
    assert found.p_holm < 1e-3 and found.verdict == "floor not cleared"
    assert (found.clears_floor_a, found.clears_floor_b) == (False, False)
    assert "no claim: neither exceeds the strongest floor" in report(name_a, name_b, [found])
    for record in records:
        if record.key.model == "local":
            record.floors["rule"] = 0.4
    assert compare(records, "local", "performer")[2][0].verdict == "A"


def test_a_margin_over_the_floor_replaces_the_interval_of_the_score(tmp_path: Path) -> None:
    [record] = [r for r in simulate(tmp_path, gap=0.0, seeds=1) if r.key.model == "local"]
    floor = record.metrics["test"]["low"] + 0.01
    record.floors["rule"] = floor
    assert Run(record).clears_floor is False
    record.margins["rule"] = {"difference": record.score() - floor, "low": 0.001, "high": 0.05}
    assert Run(record).clears_floor is True


def test_only_shared_seeds_are_used_if_there_are_at_least_five(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.1, seeds=7, start_b=2)
    name_a, name_b, [found] = compare(records, "local", "performer")
    shared = [r.score() for r in records if r.key.model == "local" and r.key.seed in (2, 3, 4, 5, 6)]
    assert (found.shared_seeds, found.score_a) == ([2, 3, 4, 5, 6], pytest.approx(np.mean(shared)))
    assert f"A                 {100 * found.score_a:.1f} % over seeds 2, 3, 4, 5, 6" in report(name_a, name_b, [found])


def test_variants_without_common_seeds_are_compared_unpaired(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.1, start_b=5)
    found = compare(records, "local", "performer")[2][0]
    assert (found.paired, found.p_examples, found.verdict) == (False, None, "A")
    by_model = {m: [r.score() for r in records if r.key.model == m] for m in ("performer", "local")}
    expected = stats.ttest_ind(by_model["local"], by_model["performer"], equal_var=False)
    interval = expected.confidence_interval()
    assert (found.p_seeds, found.low, found.high) == pytest.approx((expected.pvalue, interval.low, interval.high))
    assert found.remarks == ["no test over examples: the seeds differ"]


def test_p_values_of_all_rows_of_a_ranking_are_corrected_together(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.03)
    alone = compare(records, "local", "performer")[2][0]
    assert (alone.together, alone.p_holm) == (1, alone.p)
    others = [
        run_of(tmp_path, model, r.key.seed, tables.predictions(r).query("length == 500")["correct"].to_numpy())
        for r in records if r.key.model == "performer" for model in ("linear", "bigbird")
    ]  # fmt: skip
    found = compare([*records, *others], "local", "performer")[2][0]
    assert (found.together, found.against, found.p) == (3, "local", alone.p)  # the better one is the reference
    assert found.p_holm == pytest.approx(min(1, 3 * alone.p))
    reversed_order = compare([*records, *others], "performer", "local")[2][0]
    assert (reversed_order.p_holm, reversed_order.difference) == (found.p_holm, -found.difference)


def test_very_small_p_values_are_printed_as_bounds(tmp_path: Path) -> None:
    records = simulate(tmp_path, gap=0.1)
    name_a, name_b, [found] = compare(records, "local", "performer")
    tiny = replace(found, p_seeds=0.0, p_examples=1e-310, p_holm=0.0, p_each_seed=[0.0])
    assert report(name_a, name_b, [tiny]).count("p < 1e-300") == 4


@pytest.mark.parametrize("what", ["rows", "targets", "data", "none", "roll-outs"])
def test_examples_that_differ_are_not_paired(tmp_path: Path, what: str) -> None:
    records = simulate(tmp_path, gap=0.1, seeds=3)
    last = records[-1]
    table = tables.predictions(last)
    if what == "rows":
        store.write(last, tmp_path, None, table[table["row"] > 0])
    elif what == "targets":
        store.write(last, tmp_path, None, table.assign(target=0))
    elif what == "data":
        last.data |= {"fingerprint": "other"}
    elif what == "roll-outs":  # the predictions are not those of the score
        last.metrics["test_targets"] = last.metrics["test"]
    else:
        last.artifacts = {}
    name_a, name_b, [found] = compare(records, "local", "performer")
    assert "5 are needed (seed=0,1,2,3,4 for both)" in report(name_a, name_b, [found])
    assert found.p_examples is None and found.remarks[0].startswith("no test over examples")
    assert (found.p, found.verdict) == (None, "too few seeds")


def test_lower_bits_per_character_are_better(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    records = [
        windows_of(tmp_path, model, seed, level * generator.uniform(0.9, 1.1, 200) * 10)
        for model, level in (("local", 1.0), ("performer", 1.2))
        for seed in range(5)
    ]
    found = compare(records, "local", "performer")[2][0]
    assert (found.verdict, found.metric) == ("A", "bits_per_character")
    assert found.difference < 0 and found.p_examples < 0.01


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("transformer", "transformer"),
        ("transformer train.steps", "transformer · train.steps=500"),
        ("transformer · train.steps=500", "transformer · train.steps=500"),
        ("transformer steps=500", "transformer · train.steps=500"),
        ("performer · features=64 · rope", "performer · features=64 · rope"),
        ("rope, performer features=64", "performer · features=64 · rope"),
        ("performer features=64", "performer · features=64 · rope"),
        ("local #bbbb0000", "local #bbbb0000"),
    ],
)
def test_find_variant_by_name(text: str, name: str) -> None:
    assert find_variant(variants(), text, "A")[0] == name


def variants() -> list[Record]:
    return [
        make_record("transformer"),
        make_record("transformer", hash="eeee0000", protocol_modified=["train.steps"]),
        make_record("performer", hash="ffff0000", differences={"model.mixer.features": 64}, position="rope"),
        make_record("performer", hash="ffff0001", differences={"model.mixer.features": 128}, position="alibi"),
        make_record("local", hash="aaaa0000"),
        make_record("local", hash="bbbb0000"),
    ]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("performer", "local #aaaa0000", "matches 2 variants"),
        ("perfomer", "local", "did you mean performer"),
        ("", "local", "no record of this variant"),
        ("local", "transformer", "add #aaaa0000 or #bbbb0000"),
        ("transformer", "transformer", "same variant"),
        ("local #cccc", "transformer", "no record with this hash"),
    ],
)
def test_unknown_and_ambiguous_names_raise_an_error(a: str, b: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(variants(), a, b)


def test_select_filters_by_task_and_protocol() -> None:
    records = [make_record("local", protocol="small"), make_record("local", "text", protocol="quick")]
    assert [r.key.task for r in select(records, "text")] == ["text"] and select([], "text") == []
    with pytest.raises(UserError, match=r"--tasks listop: .*did you mean listops"):
        select(records, "listop")
    with pytest.raises(UserError, match="--tasks text --protocol small: no record"):
        select(records, "text", "small")


def test_variants_must_share_a_task_and_protocol() -> None:
    records = [make_record("local", protocol="small"), make_record("transformer", protocol="quick")]
    with pytest.raises(UserError, match=r"no finished task and protocol in common .*listops · small.*listops · quick"):
        compare(records, "local", "transformer")
    failed = [make_record("local", status="failed"), make_record("transformer")]
    with pytest.raises(UserError, match="nothing"):
        compare(failed, "local", "transformer")
    changed = variants()
    found = compare(changed, "transformer", "transformer train.steps")[2][0]
    assert any("protocol keys modified for A and B differ" in remark for remark in found.remarks)


def test_compare_command_prints_text_or_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(tmp_path, gap=0.1, seeds=3)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lra-bench", "compare", *arguments, "--results", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    code, page, _ = command("local", "performer")
    assert code == 0 and "verdict           local is better in each of 3 seeds" in page
    [found] = json.loads(command("local", "performer", "--json")[1])
    assert (found["a"], found["b"], found["verdict"]) == ("local", "performer", "A in every seed")
    for arguments, fragment in (
        (("local", "unknown"), "B=unknown"),
        (("local", "performer", "--task", "listop"), "did you mean listops"),
        (("local", "performer", "--protocol", "lra"), "--protocol lra: no record"),
    ):
        code, _, error = command(*arguments)
        assert code == 2 and fragment in error
