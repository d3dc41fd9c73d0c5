"""Tables and figures of boards in README and docs; ``python -m tests.support.board_tables`` writes them."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from pandas import isna

import lra_bench
from benchmarks.modifications import tau
from lra_bench.figures import draw
from lra_bench.measurements.pretraining import objective_of
from lra_bench.records.profiles import load_profiles
from lra_bench.records.schema import Record
from lra_bench.records.store import load_all
from lra_bench.tables import export
from lra_bench.tables.overview import overview, systems
from lra_bench.tables.runs import Run

ROOT = Path(__file__).parents[2]
BOARDS = ROOT / "results" / "reference"
BOARD = BOARDS / "board2026"
FIGURES = {
    "score_over_length": (BOARD, ("recall_ladder", "selective_copy", "s3")),
    "score_over_long_rows": (BOARDS / "long", ()),
}
"""Board and tasks of each figure of scores over length, by file name; no tasks means all."""
Table = list[list[str]]
"""Rows of cells; the first row is the heading."""


@cache
def first_tier() -> list[Record]:
    """Return the records of the systems that have records of all tasks of the board."""
    tasks: dict[str, set[str]] = defaultdict(set)
    records = load_all(BOARD)
    for record in records:
        tasks[record.key.model].add(record.key.task)
    return [record for record in records if len(tasks[record.key.model]) == max(map(len, tasks.values()))]


@cache
def wide() -> Table:
    """Return the table of the layout ``wide`` for the first tier, with one row per variant."""
    text = export.render(systems(overview(first_tier())), "markdown", layout="wide")
    [table] = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    heading, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines())
    return [heading, *rows]


def version_3() -> list[Table]:
    """Return the columns of the board that the README lacks, and its minimal pairs."""
    heading, *rows = wide()
    shown = [0, *(number for number, name in enumerate(heading) if re.match("skill kept|time|parameters", name))]
    systems = [row for row in rows if not row[0].endswith("(floor)")]
    pairs = [["system", "level 1", "2", "3", "4", "5"], *minimal_pairs(first_tier())]
    return [[[row[number] for number in shown] for row in (heading, *systems)], pairs]


def readme() -> list[Table]:
    """Return the table of the README: scores and relative costs of version 3, and the strongest floors."""
    heading, *rows = wide()
    hidden = re.compile("mean skill|comparable|time|skill|hardware|status|parameters")
    shown = [number for number, name in enumerate(heading) if not hidden.match(name)]
    floors = [row for row in rows if row[0].endswith("(floor)")]
    strongest = ["strongest floor"]
    for number in shown[1:]:
        scores = sorted((row[number] for row in floors if row[number]), key=float)
        strongest.append((scores[0] if heading[number].startswith("enwik8") else scores[-1]) if scores else "")
    heading = [re.sub(r" \(the first.*\)|: not learned.*", "", name) for name in heading]
    measured = []
    for row in (row for row in rows if row not in floors):
        # The status column lists the tasks with seeds that have no score.
        ended = {task: badge for badge, task in re.findall(r"(\w+ \d/\d) \((\w+)\)", row[heading.index("status")])}
        cells = [(short(row[number]), ended.get(heading[number], "")) for number in shown]
        measured.append([cell if badge in cell else f"{cell}, {badge}" for cell, badge in cells])
    return [[[heading[number] for number in shown], *measured, strongest]]


def short(cell: str) -> str:
    """Remove the scores of single seeds from a cell; keep their range or interval if it is wide."""
    if half := re.search(r" ± ([\d.]+)( \(\d+\))", cell):
        return cell.replace(half[2] if float(half[1]) >= 5 else half[0], "")
    listed = re.search(r" \(([\d.]+(?:, [\d.]+)+)\)", cell)
    if listed is None:
        return cell
    seeds = sorted(listed[1].split(", "), key=float)
    wide = float(seeds[-1]) - float(seeds[0]) >= 5
    return cell.replace(listed[0], f" ({seeds[0]}–{seeds[-1]})" if wide else "")


def minimal_pairs(records: Sequence[Record]) -> Iterator[list[str]]:
    """Yield a row of each system: the percentage of pairs of which both are right, mean over seeds, by level."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for record in records:
        if record.minimal_pairs is not None and record.key.task == "listops":
            found[record.variant_name].append([point["score"] for point in record.minimal_pairs["points"]])
    means = {name: [mean(scores) for scores in zip(*seeds, strict=True)] for name, seeds in found.items()}
    for name, scores in sorted(means.items(), key=lambda item: -sum(item[1])):
        yield [name, *(f"{100 * score:.0f}" for score in scores)]


def second_tier() -> list[Table]:
    """Return the scores and costs of the second tier on ``recall_ladder``, sorted by the score at 8x."""
    board = lra_bench.leaderboard(results=BOARD, reference="none", tasks="recall_ladder")
    own = board[~board["model"].isin({record.key.model for record in first_tier()}) & board["score"].notna()]
    rows = [
        ["system", "1x", "2x", "4x", "8x", "training in 10¹² FLOPs", "state in kB", "parameters", "speed", "memory"]
    ]
    for _, row in own.sort_values("score_8x", ascending=False).iterrows():
        scores = [percent(row[f"score_{at}"]) + " °" * (not row[f"clears_floor_{at}"]) for at in rows[0][1:5]]
        state = "" if isna(row["state_bytes"]) else f"{row['state_bytes'] / 1e3:.1f}"
        flops, parameters = f"{row['train_flops'] / 1e12:.1f}", f"{row['parameters_body']:,.0f}"
        ratios = (f"{row[name]:.2f}" for name in ("relative_speed", "relative_memory"))
        rows.append([row["variant"], *scores, flops, state, parameters, *ratios])
    return [rows]


def costs() -> list[Table]:
    """Return the speed of a training step relative to the Transformer by length, from the latest profile."""
    ratios: dict[str, dict[int, float | None]] = defaultdict(dict)
    *_, latest = (profile for profile in load_profiles(BOARD) if profile.task == "listops")
    for row in latest.rows:
        if row["mode"] == "train" and row["variant"] != "transformer (math)":
            ratios[row["variant"]][row["length"]] = row["speed_ratio_default"]
    lengths = sorted(ratios["transformer"])
    rows = [[name, *(f"{own[length]:.2f}" for length in lengths)] for name, own in ratios.items()]
    heading = ["system", *(f"{length:,} tokens" for length in lengths)]
    return [[heading, *sorted(rows, key=lambda row: -float(row[-1]))]]


def choosing() -> list[Table]:
    """Return the rows whose seeds all exceed the floor, by task and descending score at the longest inputs."""
    board = lra_bench.leaderboard(results=BOARD, reference="none")
    board = board[board["learned"].eq(board["seeds"])].sort_values(["task", "score_8x"], ascending=[True, False])
    rows = [["task", "system", "seeds", "accuracy in %", "at 8x", "training in 10¹² FLOPs", "state in kB"]]
    for _, row in board.iterrows():
        longest = percent(row["score_8x"]) + " °" * (not row["clears_floor_8x"])
        state = "" if isna(row["state_bytes"]) else f"{row['state_bytes'] / 1e3:.1f}"
        name, seeds, flops = f"`{row['variant']}`", f"{row['seeds']}", f"{row['train_flops'] / 1e12:.1f}"
        rows.append([f"`{row['task']}`", name, seeds, percent(row["score"]), longest, flops, state])
    return [rows]


def held_out() -> list[Table]:
    """Return the mean scores on the board, the scores on held-out settings, and Kendall's tau between them."""
    ours, held = (
        {
            (row["task"], row["model"]): None if isna(row["score"]) else row["score"]
            for _, row in lra_bench.leaderboard(results=BOARDS / name, reference="none").iterrows()
        }
        for name in ("board2026", "held_out")
    )
    tasks = ("listops", "s3", "recall_ladder")
    systems = sorted({model for _, model in held}, key=lambda model: -held[tasks[0], model])
    both = {task: [(ours[task, model], held[task, model]) for model in systems] for task in tasks}
    rows = [
        [name, *(percent(score) for task in tasks for score in both[task][place])] for place, name in enumerate(systems)
    ]
    last = ["Kendall's tau"]
    for task in tasks:
        found, low, high = tau(*zip(*(pair for pair in both[task] if None not in pair), strict=True))
        last += ["", f"{found:.2f} ({low:.2f} to {high:.2f})"]
    heading = ["system", "`listops`", "28 to 60 tokens", "`s3`", "D6", "`recall_ladder`", "3, 7 or 9 pairs"]
    return [[heading, *rows, last]]


def mqar() -> list[Table]:
    """Return the table of MQAR: one row per width and network, with accuracy, learning rate and parameters."""
    rows = [["variant", "width", "accuracy in %", "learning rate", "parameters"]]
    order = sorted(finished("zoology"), key=lambda record: (record.config["backbone"]["width"], -(record.score() or 0)))
    for record in order:
        width, rate = record.config["backbone"]["width"], f"{record.config['train']['lr']:.3g}"
        name = record.variant_name.replace(f" · width={width}", "")
        rows.append([name, f"{width}", percent(record.score()), rate, f"{record.parameters['body']:,}"])
    return [rows]


def mad() -> list[Table]:
    """Return the accuracy of each system on five tasks of MAD, by descending accuracy on the first."""
    tasks = [f"mad_{name}" for name in ("recall", "fuzzy", "noisy", "copy", "compression")]
    scores = {(record.variant_name, record.key.task): record.score() or 0 for record in finished("mad")}
    names = sorted({name for name, _ in scores}, key=lambda name: -scores[name, tasks[0]])
    return [[["variant", *tasks], *([name, *(percent(scores[name, task]) for task in tasks)] for name in names)]]


def addition() -> list[Table]:
    """Return the accuracy of the symbols of generated answers at each length, sorted by the first length."""
    rows = []
    for record in finished("generation"):
        first = next(point["score"] for point in record.slices or [] if point["label"] == "symbols")
        longer = (point["parts"]["generated"]["symbols"] for point in points(record) if point["ratio"] > 1)
        rows.append([record.variant_name, *map(percent, (first, *longer))])
    return [[["variant", "training length", "2x", "4x"], *sorted(rows, key=lambda row: -float(row[1]))]]


def pretraining() -> list[Table]:
    """Return the scores with and without pretraining at each length; a cell contains the scores of all seeds."""
    seeds: dict[tuple[int, ...], list[Record]] = defaultdict(list)
    kinds = ("", "masked", "causal")
    for record in finished("pretraining"):
        key, config = record.key, record.config
        order = [("listops", "retrieval_synthetic").index(key.task), bool(config["backbone"]["causal"])]
        order += [("transformer", "s4d", "lstm").index(key.model), "train.steps" in record.protocol_modified]
        seeds[(*order, kinds.index(objective_of(config)))].append(record)
    rows = [["task", "system", "pretraining", "training length", "2x", "4x", "8x"]]
    for (_, causal, _, longer, kind), records in sorted(seeds.items(), key=lambda item: (item[0][:3], item[0][3:])):
        first = records[0]
        how = (kinds[kind] or "none") + (f", {first.config['train']['steps']:,} steps" if longer else "")
        at = [{point["ratio"]: percent(point["score"]) for point in points(record)} for record in records]
        scores = (", ".join(each[ratio] for each in at) for ratio in (1, 2, 4, 8))
        rows.append([f"`{first.key.task}`", f"`{first.key.model}`{', causal' * causal}", how, *scores])
    return [rows]


def long() -> list[Table]:
    """Return the scores at the training length and at 4 and 16 times this length, sorted by their mean at the first."""
    tasks, ratios = ("needle", "recall_ladder", "selective_copy", "parity"), (1, 4, 16)
    scores: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
    floors = {}
    for record in finished("long"):
        at = {point["ratio"]: point["score"] for point in points(record)}
        scores[record.variant_name][record.key.task] = [at[ratio] for ratio in ratios]
        floors[record.key.task] = Run(record).floor[1]
    order = sorted(scores, key=lambda name: -mean(own[0] or 0 for own in scores[name].values()))
    rows = [[name, *(", ".join(map(percent, scores[name][task])) for task in tasks)] for name in order]
    return [[["variant", *tasks], *rows, ["strongest floor", *(percent(floors[task]) for task in tasks)]]]


def finished(board: str) -> list[Record]:
    """Return the finished records of a board in the order of their seeds."""
    records = (record for record in load_all(BOARDS / board) if record.status == "ok")
    return sorted(records, key=lambda record: (record.key.seed or 0, record.key))


def points(record: Record) -> Iterable[Mapping]:
    """Return the scores on redrawn examples of other lengths."""
    assert record.extrapolation is not None
    return (point for point in record.extrapolation["points"] if point["variant"] == "redrawn")


def percent(score: float | None) -> str:
    """Format an accuracy; empty if there is none."""
    return "" if score is None else f"{100 * score:.1f}"


TABLES: dict[tuple[str, str], Callable[[], list[Table]]] = {
    ("README.md", ""): readme,
    ("docs/boards.md", "Version 3"): version_3,
    ("docs/boards.md", "Second tier"): second_tier,
    ("docs/boards.md", "Costs"): costs,
    ("docs/choosing.md", "By task"): choosing,
    ("docs/boards.md", "Held-out settings"): held_out,
    ("docs/boards.md", "MQAR"): mqar,
    ("docs/boards.md", "MAD"): mad,
    ("docs/boards.md", "Addition"): addition,
    ("docs/boards.md", "Long rows"): long,
    ("docs/pretraining.md", "Results"): pretraining,
}
"""Tables of a section, by its file and heading; without a heading, those before the first section."""


def sections(file: str, heading: str) -> tuple[str, str, str]:
    """Return the text before a section, the section, and the text after it."""
    text = (ROOT / file).read_text(encoding="utf-8")
    before, start, rest = text.partition(f"\n## {heading}\n") if heading else ("", "", text)
    section, end, after = rest.partition("\n## ")
    return before + start, section, end + after


def markdown(table: Table) -> list[str]:
    """Return the lines of a table."""
    heading, *rows = table
    return [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows)]


def written(section: str) -> list[list[str]]:
    """Return the Markdown tables of a section, each as a list of lines."""
    return [match[0].splitlines() for match in re.finditer(r"(?:^\|.*\n)+", section, re.MULTILINE)]


def main() -> None:
    """Update the tables and figures. Raises ``ValueError`` if a section has a wrong number of tables."""
    for (file, heading), tables in TABLES.items():
        before, section, after = sections(file, heading)
        for old, table in zip(written(section), tables(), strict=True):
            section = section.replace("\n".join(old), "\n".join(markdown(table)))
        (ROOT / file).write_text(before + section + after, encoding="utf-8")
    for name, (board, tasks) in FIGURES.items():
        records = first_tier() if board == BOARD else load_all(board)
        records = [record for record in records if not tasks or record.key.task in tasks]
        with TemporaryDirectory() as folder:
            drawn = draw("extrapolation", records, Path(folder), pdf=False)
            shutil.copy(
                next(path for path in drawn if path.suffix == ".png"), ROOT / "docs" / "figures" / f"{name}.png"
            )


if __name__ == "__main__":
    main()
