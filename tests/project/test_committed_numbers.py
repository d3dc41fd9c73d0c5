"""Tables of the documentation contain the numbers of committed records, and the claims that follow from them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from statistics import mean

import pytest

import lra_bench
from benchmarks import modifications
from benchmarks.frozen_rates import trials
from lra_bench.config.groups import option_files
from lra_bench.config.yaml_files import read
from lra_bench.measurements.rate_search import choose, mean_losses
from lra_bench.records.profiles import load_profiles
from lra_bench.records.reference import load_reference
from lra_bench.records.schema import Record
from lra_bench.tables.claims import rankings
from lra_bench.tables.pair_tests import compare_pair
from lra_bench.tables.runs import Run
from tests.support import board_tables

ROOT = Path(__file__).parents[2]
TRIALS = ROOT / "results" / "reference" / "board2026" / "trials"


def records_of(*boards: str) -> list[Record]:
    records = load_reference(ROOT / "results" / "reference")
    found = [record for record in records if record.reference in boards]
    for record in found:
        record.reference = ""  # as with --results
    return found


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of Markdown tables, without the lines below headings."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not re.fullmatch("[-:]+", row[0])]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "heading"), board_tables.TABLES)
def test_tables_are_those_of_the_records(file: str, heading: str) -> None:
    tables = map(board_tables.markdown, board_tables.TABLES[file, heading]())
    assert board_tables.written(board_tables.sections(file, heading)[1]) == list(tables)


@pytest.mark.slow
def test_statements_on_the_board_of_version_3_are_those_of_the_records() -> None:
    board = records_of("board2026")
    scores = defaultdict(list)
    for record in board:
        for point in board_tables.points(record) if record.extrapolation else ():
            if point["score"] is not None:
                scores[record.key.task, record.key.model, point["ratio"]].append(100 * point["score"])
    recall = {model: scores["recall_ladder", model, 1] for model in ("transformer", "mamba2", "gated_delta_net")}
    longer = {model: mean(scores["recall_ladder", model, 8]) for model in ("transformer", "mamba2")}
    tried = {one["lr"]: one["score"] for one in trials(TRIALS)["recall_ladder", "performer", "RotaryPosition"]}
    for floor, task in ((23.3, "recall_ladder"), (80.6, "retrieval_synthetic"), (25.9, "selective_copy"), (33.3, "s3")):
        of_task = [record for record in board if record.key.task == task and record.status == "ok"]
        assert {f"{100 * Run(record).floor[1]:.1f}" for record in of_task} == {f"{floor}"}

    text = " ".join(page("boards").split())
    cells = {(record.key.task, record.key.model, record.key.seed) for record in board_tables.first_tier()}
    further = {cell for cell in cells if cell[2] > 2}
    assert len(cells - further) == 12 * 6 * 3 and f"contains all {len(cells - further)} cells of the first tier" in text
    assert len(further) == 12 * 2 * 2 and {task for task, _, _ in further} == {"listops", "recall_ladder"}
    assert [f"{score:.1f}" for score in recall["transformer"] + recall["mamba2"]] == 10 * ["100.0"]
    assert {f"{score:.1f}" for score in scores["recall_ladder", "transformer_modern", 1]} == {"100.0"}
    low, *_, below, high = sorted(scores["recall_ladder", "linear", 1])
    assert f"{high:.1f} % in one seed and {low:.1f} to {below:.1f} % in the others" in text
    of_performer = ("recall_ladder", "performer")
    ended = [record.status for record in board if (record.key.task, record.key.model) == of_performer]
    assert sorted(ended) == [*4 * ["diverged"], "ok"] and "The Performer diverged in four of five seeds" in text
    copied = [f"{min(scores['selective_copy', model, 8]):.1f}" for model in ("gated_delta_net", "mamba2", "min_gru")]
    assert "with at least {}, {} and {} %".format(*copied) in text
    fixed = min(scores["selective_copy", "s4d", 1]), max(scores["selective_copy", "s4d", 2])
    assert "at least {:.1f} % at the training length and at most {:.1f} % at twice this length".format(*fixed) in text
    seeds = [f"{score:.1f}" for score in scores["selective_copy", "transformer", 1]]
    assert "The seeds of the Transformer reach {}, {} and {} %".format(*seeds) in text
    worst, second, *_ = sorted(recall["gated_delta_net"])
    assert f"Gated DeltaNet {second:.1f} % or more in four of five ({worst:.1f} % in the other)" in text
    assert f"Mamba-2 reaches {longer['mamba2']:.1f} %, the Transformer {longer['transformer']:.1f} %" in text
    assert f"({100 * tried[1e-3]:.1f} and {100 * tried[3e-3]:.1f} % of the validation examples)" in text
    assert f"after training on 40 tokens, and {min(scores['s3', 'lstm', 8]):.1f} % or more at 320" in text
    assert [f"{score:.1f}" for score in scores["s3", "lstm", 1]] == 3 * ["100.0"]
    assert "exceed the floor (23.3 %)" in text and "exceeds the floor (33.3 %)" in text
    exceeding = defaultdict(set)
    table = lra_bench.leaderboard(results=TRIALS.parent, reference="none")
    for _, row in table[table["learned"].eq(table["seeds"])].iterrows():
        exceeding[row["task"]].add(row["model"])
    ranked = {task: rows.set_index("model") for task, rows in table.groupby("task")}
    worse = ranked["recall_ladder"].loc[["lstm", "min_gru", "s4d"]]
    least, most = -100 * worse["difference"].max(), -100 * worse["difference"].min()
    assert set(worse["verdict"]) == {"worse"}
    assert f"worse than the Transformer by {least:.1f} to {most:.1f} points" in text
    deep = max(int(cell) for row in board_tables.version_3()[1][1:] for cell in row[3:])
    assert f"At most {deep} % of the pairs whose digit is on the third level or deeper" in text
    level = 100 * ranked["listops"]["score"]["transformer"]
    assert f"the Transformer ({level:.1f} %), no claim" in text
    learned = ranked["listops"]["learned"]
    assert learned["lstm"] == 3 == learned.sum() and "The LSTM does so in three of five seeds, no other" in text
    assert len(exceeding["selective_copy"]) == 9 and "nine systems exceed the floor (25.9 %)" in text
    lowest = {
        model: f"{min(own):.1f}"
        for (task, model, ratio), own in scores.items()
        if (task, ratio) == ("retrieval_synthetic", 8)
    }
    assert len(exceeding["retrieval_synthetic"]) == 10 and "ten systems exceed the floor (80.6 %)" in text
    assert not exceeding["retrieval_synthetic"] & {"linear", "linformer"}
    assert f"at least {lowest['min_gru']} % and Gated DeltaNet {lowest['gated_delta_net']} % in every seed" in text
    others = min((lowest[model] for model in ("mamba2", "transformer", "transformer_modern")), key=float)
    assert f"Mamba-2 and the Transformers at least {others} %" in text
    assert f"reaches {lowest['min_gru']} % or more in every seed" in " ".join(page("choosing").split())
    bits = [record.score() for record in board if (record.key.task, record.key.model) == ("enwik8", "lstm")]
    assert max(bits) < 2.168 and f"(2.168 bits). The LSTM is below it in every seed ({mean(bits):.3f} bits)" in text
    assert exceeding["s3"] == {"lstm"} and not exceeding["listops"] | exceeding["enwik8"]


@pytest.mark.slow
def test_statements_on_the_second_tier_are_those_of_the_records() -> None:
    text = " ".join(page("boards").partition("## Second tier")[2].partition("## Costs")[0].split())
    first = {record.key.model for record in board_tables.first_tier()}
    second = [record for record in records_of("board2026") if record.key.model not in first]
    assert {record.key.task for record in second} == {"recall_ladder"}
    seeds = defaultdict(list)
    for record in second:
        for point in board_tables.points(record) if record.extrapolation else ():
            seeds[record.key.model, point["ratio"]].append(board_tables.percent(point["score"]))
    incompatible = {record.key.model for record in second if record.status == "incompatible"}
    assert incompatible == {"bigbird", "nystrom", "fnet", "reformer", "bag_of_tokens"} and "these five do not" in text
    assert {record.status for record in second} == {"ok", "incompatible"} and len(second) == 3 * (9 + 5)
    solved = [seeds[model, ratio] for model in ("delta_product", "mlstm") for ratio in (1, 2, 4, 8)]
    assert solved == 8 * [3 * ["100.0"]] and seeds["rwkv7", 1] == 3 * ["100.0"]
    assert f"at least {min(seeds['rwkv7', 8], key=float)} % at eight times" in text
    table = lra_bench.leaderboard(results=TRIALS.parent, reference="none", tasks="recall_ladder").set_index("model")
    exceeding = {*table.index[table["learned"].eq(table["seeds"]) & table["seeds"].gt(0)]}
    assert exceeding - first == {"delta_product", "mlstm", "rwkv7", "h_transformer_1d"}
    complete = table.loc[[*exceeding - {"linear", "h_transformer_1d"}]]
    assert complete["train_flops"].idxmin() == "mlstm"
    assert [*complete["state_bytes"].astype(float).nsmallest(2).index] == ["gated_delta_net", "mlstm"]
    seeds_of = table["seed_scores"][table["seeds"].gt(0)]
    assert {*seeds_of.index[seeds_of.map(max).gt(0.99)]} - {"transformer", "transformer_modern"} == {
        *("mamba2", "gated_delta_net", "delta_product", "mlstm", "rwkv7")
    }
    assert {*table["parameters_body"].astype(float).nlargest(2).index} == {"rwkv7", "hyena"}
    [profile] = (profile for profile in load_profiles(TRIALS.parent) if profile.task == "recall_ladder")
    timed = [row for row in profile.rows if (row["mode"], row["length"]) == ("train", 8192)]
    spreads = [
        row["spread_of_speed_ratio_default"] or 0 for row in timed if not row["variant"].startswith("transformer")
    ]
    assert len(spreads) == 9 and f"in which these speeds are uncertain by up to {100 * max(spreads):.0f} %" in text
    tried = trials(TRIALS)["recall_ladder", "h_transformer_1d", "RotaryPosition"]
    rate = next(each["score"] for each in tried if each["lr"] == 0.01)
    low, _, high = sorted(seeds["h_transformer_1d", 1])
    assert f"reaches {low} to {high} % with its three seeds, but {100 * rate:.1f} % of the" in text


@pytest.mark.slow
def test_statements_on_costs_are_those_of_the_profiles() -> None:
    text = " ".join(page("boards").partition("## Costs")[2].partition("## Held-out settings")[0].split())
    earlier, later = (
        {
            (row["mode"], row["length"], row["variant"]): (row["speed_ratio_default"], row["memory_ratio_default"])
            for row in profile.rows
            if row["speed_ratio_default"] and row["variant"] not in ("transformer", "transformer (math)")
        }
        for profile in load_profiles(TRIALS.parent)
        if profile.task == "listops"
    )
    assert len(earlier) == len(later) == 2 * 4 * 11
    ratios = {place: speed / later[place][0] for place, (speed, _) in earlier.items()}
    differ = {place: 100 * (max(ratio, 1 / ratio) - 1) for place, ratio in ratios.items()}
    at_longest = max(value for place, value in differ.items() if place[:2] == ("train", 16384))
    assert f"differ by at most {max(differ.values()):.1f} %, those of training steps" in text
    assert f"of 16,384 tokens by at most {at_longest:.1f} %" in text

    def slower(mode: str, length: int) -> set[str]:
        found = {place[2] for place, (speed, _) in later.items() if place[:2] == (mode, length) and speed < 1}
        return found - {"transformer_modern"}

    assert slower("train", 512) == {"s4d", "mamba2", "gated_delta_net"} and not slower("train", 2048)
    assert slower("inference", 512) == slower("train", 512)
    assert slower("inference", 2048) == {"s4d"} and not slower("inference", 8192)
    four = ("linear", "linformer", "min_gru", "short_convolution")
    fast = min(later["train", 512, name][0] for name in four)
    assert f"are at least {fast:.2f} times as fast at 512 tokens" in text
    longest = {place[2]: values for place, values in later.items() if place[:2] == ("train", 16384)}
    assert {name for name, (_, memory) in longest.items() if memory < 1} == set(four)
    slowest = min(speed for name, (speed, _) in longest.items() if name != "transformer_modern")
    assert f"are at least {slowest:.2f} times as fast. The same four" in text
    memory, name = max((memory, name) for name, (_, memory) in longest.items())
    assert name == "mamba2" and f"Mamba-2 needs the most, {memory:.2f} times as much" in text


@pytest.mark.slow
def test_statements_on_held_out_settings_are_those_of_the_records() -> None:
    table = lra_bench.leaderboard(results=ROOT / "results" / "reference" / "held_out", reference="none")
    exceeding = {task: {*rows.loc[rows["clears_floor"], "model"]} for task, rows in table.groupby("task")}
    floors = {task: {f"{100 * floor:.1f}" for floor in rows["floor"]} for task, rows in table.groupby("task")}
    section = " ".join(page("boards").partition("## Held-out settings")[2].partition("## Pictures")[0].split())
    assert exceeding["listops"] == {"s4d", "lstm", "mamba2", "min_gru", "local"} and floors["listops"] == {"42.0"}
    assert exceeding["s3"] == {"lstm"} and floors["s3"] == {"33.3"} and "with 41.1 instead of 100.0 %" in section
    assert exceeding["recall_ladder"] == {"transformer", "mamba2", "gated_delta_net", "linear"}
    assert "Five systems exceed the strongest floor of this setting (42.0 %)" in section
    assert "| lstm | 56.6 | 48.5 | 100.0 | 41.1 |" in section and "| Kendall's tau | | 0.72 (" in section
    assert "Kendall's tau is 0.72" in section


@pytest.mark.slow
def test_statements_on_choosing_a_system_are_those_of_the_tables() -> None:
    text = " ".join(page("choosing").split())
    rows = {(row[0].strip("`"), row[1].strip("`")): row[3:] for row in table_rows(page("choosing"))}
    first = {task: next(model for found, model in rows if found == task) for task, _ in rows}
    assert {"selective_copy": "gated_delta_net", "s3": "lstm"}.items() <= first.items()
    recall = {model: row[1:] for (task, model), row in rows.items() if task == "recall_ladder"}
    longest = {model: [float(cost) for cost in row[1:]] for model, row in recall.items() if row[0] == "100.0"}
    assert {*longest} == {"mlstm", "mamba2", "delta_product"}
    assert [min(values) for values in zip(*longest.values(), strict=True)] == longest["mlstm"]
    assert first["retrieval_synthetic"] == "min_gru" and [model for task, model in rows if task == "s3"] == ["lstm"]
    small, best = rows["selective_copy", "min_gru"], rows["selective_copy", "gated_delta_net"]
    shares = [round(float(one) / float(other), 2) for one, other in zip(small[2:], best[2:], strict=True)]
    assert shares == [0.73, 0.1] and "with three quarters of its training FLOPs and a tenth of its state" in text
    assert f"`min_gru` reaches {small[0]} %" in text
    twice = [
        point["score"]
        for record in records_of("board2026")
        if (record.key.task, record.key.model) == ("recall_ladder", "transformer")
        for point in board_tables.points(record)
        if point["ratio"] == 2
    ]
    assert len(twice) == 5 and min(twice) > 0.99
    speeds = {name: own[-1] for name, *own in board_tables.costs()[0][1:]}
    fastest, *_, slowest, modern, _ = speeds
    assert (fastest, slowest, modern) == ("linformer", "gated_delta_net", "transformer_modern")
    assert f"are {speeds[slowest]} (Gated DeltaNet) to {speeds[fastest]} times (Linformer) as fast" in text


@pytest.mark.slow
def test_bits_of_systems_with_memory_are_those_of_the_records() -> None:
    rows = {row[0].strip("`"): row for row in table_rows(page("memory")) if len(row) == 10}
    found = 0
    for record in records_of("memory"):
        row = rows.get(record.variant_name)
        if record.key.task != "enwik8" or row is None:
            continue
        assert f"{record.score():.3f}" == row[2].split(", ")[record.key.seed], record.key
        assert f"{record.parameters['body']:,}" == row[1]
        found += 1
    assert found == 3 * (len(rows) - 1)  # without the heading


@pytest.mark.slow
def test_rates_of_quick_are_those_that_the_trials_chose() -> None:
    # Rotary positions come last and override the rates of sinusoidal positions.
    made = sorted(trials(TRIALS).items(), key=lambda item: item[0][2] != "SinusoidalPosition")
    chosen = {(task, model): choose(mean_losses(own)) for (task, model, _), own in made}
    cells = {
        tuple(cell.split("/")): entry["train"]["lr"]
        for cell, entry in read(option_files("protocol")["quick"], "protocol=quick")[0]["cells"].items()
    }
    assert cells == {cell: rate for cell, rate in chosen.items() if cell in cells}


@pytest.mark.slow
def test_the_agreement_of_modifications_with_the_paper_is_that_of_the_records() -> None:
    ours = modifications.measured(records_of("modifications"))
    assert len(ours) > 80
    written = [line for line in page("modifications").splitlines() if line.startswith("|")]
    assert written == modifications.agreements(modifications.published(), ours)


MEASURED = {
    "adaptive-depth": (
        ("adaptive_depth",),
        {
            "82.9": "floor of text by the words of the reviews (docs/tasks.md)",
            "1.42": "seconds per token of calm on enwik8 at a confidence of 0.3, divided by those after layer 4",
            "1.45": "seconds per token of calm on enwik8 at a confidence of 0.5, divided by those after layer 4",
        },
    ),
    "decisions": (("decisions",), dict.fromkeys(("71.8", "1.4", "94.6"), "Chen et al. 2021, arXiv 2106.01345")),
    "boards": (
        ("generation", "image", "long", "mad", "zoology"),
        {"0.0005": "learning rate of MAD"},
    ),
    "memory": (("memory",), {}),
    "pretraining": (("pretraining",), {}),
    "rate-search": (("rate_search",), {}),
}
"""Pages of measured numbers: the boards with their records, and the numbers with another source."""
FIRST = {"boards": "Pictures"}
"""Heading of the first section that contains measured numbers. Default: "Results"; without it, the entire page."""
COMPARED = ("memory", "pretraining")
"""Pages that quote comparisons."""
FIELDS = (
    "metrics",
    "floors",
    "slices",
    "extrapolation",
    "parameters",
    "adaptive_depth",
    "memory",
    "state",
    "search",
    "measured",
)
"""Parts of records whose numbers are quoted."""
NUMBER = r"(?<![\w.,-])[-−]?\d[\d,]*\.\d+(?![\w.])|(?<![\w.])\d+(?= ?%)"
MARKUP = r"```.*?```|`[^`]*`|\]\([^)]*\)|arXiv \d{4}\.\d{5}"


def numbers_in(value: object) -> Iterator[float]:
    """Yield the numbers in nested lists and dictionaries, except losses and counts of examples."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from numbers_in(part) if key not in ("n", "loss", "margins", "floors") else ()
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers_in(part)


def differences(records: Sequence[Record]) -> Iterator[float]:
    """Yield the difference, its interval and the p-value of each pair of variants on a task."""
    found = [(place, entry) for place, ranking in rankings(records).items() for entry in ranking.entries.values()]
    for (place, a), (other, b) in permutations(found, 2):
        if place[:4] == other[:4]:
            pair = compare_pair(place[:4], a, b)
            yield from (value for value in (pair.difference, pair.low, pair.high, pair.p) if value is not None)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_measured_numbers_of_a_page_are_in_its_records(name: str) -> None:
    boards, others = MEASURED[name]
    results = page(name).rpartition(f"\n## {FIRST.get(name, 'Results')}\n")[2]
    written = re.findall(NUMBER, re.sub(MARKUP, "", results, flags=re.DOTALL))
    assert len(written) >= 10
    texts = {text: text.replace("−", "-").replace(",", "") for text in written}
    records = records_of(*boards)
    values = {number for record in records for field in FIELDS for number in numbers_in(getattr(record, field))}
    if name in COMPARED:
        values |= set(differences(records))
    stored = {
        f"{sign * scale * value:.{digits}f}"
        for digits in {len(plain.partition(".")[2]) for plain in texts.values()}
        for value in values
        for scale in (1, 100)
        for sign in (1, -1)
    }
    unknown = {text for text, plain in texts.items() if plain not in stored}
    assert unknown == others.keys()


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()
