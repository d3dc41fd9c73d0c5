"""The leaderboard as people and programs read it: terminal, markdown, CSV, JSON."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.files import replacing, why
from lra_bench.records.schema import STATUSES, Record
from lra_bench.records.values import plain

from .runs import ratio_name
from .table import RANKED_TOGETHER, leaderboard

if TYPE_CHECKING:
    import pandas as pd

FILES = {"markdown": "leaderboard.md", "csv": "leaderboard.csv", "json": "leaderboard.json"}
NOTE = (
    "Score with its 95 % interval, over seeds where there are two or more, else over examples. Rows are ranked by "
    "score within a task and protocol; differences inside the intervals are no ranking. Speed and memory belong to the "
    "named hardware and length. Comparable: protocol unmodified and within 10 % of the transformer's body parameters."
)
NARROW = 60
TEXT_COLUMNS = ("variant", "over", "status", "comparable", "hardware", "ended", "modified")


def render(frame: pd.DataFrame, format: str = "terminal", width: int | None = None) -> str:
    """A leaderboard as text in ``format`` (terminal, markdown, csv, json); ``width`` is that of the terminal.

    CSV and JSON hold every column as measured; the others what a reader needs, rounded. ``UserError`` on other formats.
    """
    formats: dict[str, Callable[[], str]] = {
        "terminal": lambda: _terminal(frame, width or shutil.get_terminal_size((100, 24)).columns),
        "markdown": lambda: _markdown(frame),
        "csv": lambda: frame.to_csv(index=False),
        "json": lambda: json.dumps(_rows(frame), indent=1, allow_nan=False) + "\n",
    }
    if format not in formats:
        raise UserError(f"--format {format}: choose {', '.join(formats)}")
    return formats[format]()


def write(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write ``leaderboard.md``, ``.csv`` and ``.json`` into ``folder``, each whole or not at all; the paths.

    Raises ``UserError`` where the folder cannot be written.
    """
    try:
        for format, name in FILES.items():
            with replacing(folder / name) as path:
                path.write_text(render(frame, format), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--results {folder}: {why(error)}; choose another folder with --results") from error
    return [folder / name for name in FILES.values()]


def row_for(record: Record, width: int | None = None) -> str:
    """The leaderboard row of one run, with all floors beneath; what is said when a run ends."""
    lines = [render(leaderboard([record]).assign(rank=None), "terminal", width).rstrip()]
    if record.floors:
        floors = " · ".join(f"{_spoken(name)} {_score(value, record.metric)}" for name, value in record.floors.items())
        lines.append(f"Floors, scores without a model: {floors}")
    if record.status != "ok":
        lines.append(f"Status {record.status}: {record.reason or STATUSES[record.status]}")
    return "\n".join(lines) + "\n"


def _sections(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Ranked groups with their titles, columns as a reader needs them."""
    for _, group in frame.groupby(RANKED_TOGETHER, sort=False, dropna=False):
        first = group.iloc[0]
        title = f"{first['task']} · {first['protocol']}"
        title += f" · data: {first['data_lacks']}" if first["data_lacks"] else ""
        yield title + (" · protocol modified" if first["section"] == "modified" else ""), _readable(group)


def _readable(group: pd.DataFrame) -> pd.DataFrame:
    """Strings for the columns that a reader needs; columns without a value are left out."""
    import pandas as pd

    metric = next(iter(group["metric"].dropna()), None)
    names = set(group["floor_name"].dropna())
    rows = [{**_scores(row, metric, names), **_costs(row)} for row in _rows(group)]
    table = pd.DataFrame(rows).fillna("")
    return table[[name for name in table.columns if name in ("variant", "score") or table[name].any()]]


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts of plain values, None where unknown."""
    import pandas as pd

    return [
        {str(name): None if pd.isna(value) else plain(value) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _scores(row: dict[str, Any], metric: str | None, floor_names: set[str]) -> dict[str, str]:
    """What was scored; a floor that all rows share is named in the heading."""
    shared = len(floor_names) == 1
    floor_name = f" {_spoken(row['floor_name'])}" if row["floor_name"] and not shared else ""
    return {
        "rank": _count(row["rank"]),
        "variant": row["variant"],
        "score": _score_with_interval(row, metric),
        f"{_spoken(next(iter(floor_names)))} floor" if shared else "floor": _score(row["floor"], metric) + floor_name,
        "over": row["interval"] or "",
        **{
            ratio_name(ratio): _score_at(row, ratio_name(ratio), metric) for ratio in sorted(_ratios(row)) if ratio != 1
        },
        "status": row["statuses"] if row["statuses"] != f"{row['seeds']} ok" else "",
    }


def _costs(row: dict[str, Any]) -> dict[str, str]:
    length = _length(row["speed_length"])
    return {
        "parameters": _count(row["parameters_body_active"]),
        "comparable": {True: "yes", False: "no", None: ""}[row["comparable"]],
        "hardware": row["hardware"],
        "run tokens/s": _count(row["training_tokens_per_second"]),
        f"step tokens/s {length}": _count(row["train_tokens_per_second"]),
        f"inference tokens/s {length}": _count(row["inference_tokens_per_second"]),
        f"step memory {length}": _megabytes(row["train_peak_allocated_bytes"]),
        f"RSS growth {length}": _megabytes(row["train_peak_resident_growth_bytes"]),
        "ended": row["train_limit"] or row["inference_limit"] or "",
        "modified": row["modified"],
    }


def _ratios(row: dict[str, Any]) -> list[float]:
    """Length ratios of the task's first variant; the others stand in the CSV and JSON."""
    return [float(found[1]) for name in row if (found := re.fullmatch(r"status_([\d.]+)x", name))]


def _score_with_interval(row: dict[str, Any], metric: str | None) -> str:
    if row["score"] is None:
        return ""
    if row["low"] is None:
        return _score(row["score"], metric)
    low, high = (_score(row[end], metric).removesuffix(" %") for end in ("low", "high"))
    return f"{_score(row['score'], metric)} [{low}, {high}]"


def _score_at(row: dict[str, Any], ratio: str, metric: str | None) -> str:
    status = row[f"status_{ratio}"]
    return _score(row[f"score_{ratio}"], metric) if status == "ok" else (status or "")


def _score(value: float | None, metric: str | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if metric != "bits_per_character" else f"{value:.3f}"


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _megabytes(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.2g} MB"


def _length(value: int | None) -> str:
    if value is None:
        return ""
    return f"@{value // 1024}k" if value % 1024 == 0 else f"@{value}"


def _markdown(frame: pd.DataFrame) -> str:
    parts = ["# Leaderboard", NOTE]
    for title, table in _sections(frame):
        escaped = table.map(lambda cell: cell.replace("|", "\\|"))
        parts += [f"## {title}", escaped.to_markdown(index=False, disable_numparse=True)]
    return "\n\n".join(parts if len(parts) > 2 else [*parts, "No records yet."]) + "\n"


def _terminal(frame: pd.DataFrame, width: int) -> str:
    """Tables as wide as the terminal: scores and costs side by side where they fit, else one below the other."""
    from rich.console import Console

    if frame.empty:
        return "No records yet: lra-bench bench makes one.\n"
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=sys.stdout.isatty(), highlight=False)
    for title, table in _sections(frame):
        if width < NARROW:
            _print_list(console, title, table)
        else:
            for number, part in enumerate(_parts(table, width)):
                _print_table(console, title if number == 0 else f"{title}, continued", part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n") + "\n"


def _parts(table: pd.DataFrame, width: int) -> Iterator[pd.DataFrame]:
    """The table cut into groups of columns that fit ``width``, the variant heading each."""
    names = [str(name) for name in table.columns]
    if _width(table, names) <= width:
        yield table
        return
    first_cost = names.index("parameters") if "parameters" in names else len(names)
    for theme in (names[:first_cost], names[first_cost:]):
        columns: list[str] = []
        for name in theme:
            if not columns and "variant" not in theme:
                columns = ["variant"]
            if len(columns) > 1 and _width(table, [*columns, name]) > width:
                yield table[columns]
                columns = ["variant"]
            columns.append(name)
        if columns:
            yield table[columns]


def _width(table: pd.DataFrame, names: list[str]) -> int:
    """Characters that a table of these columns takes, headings broken at spaces."""
    cells = [max(max(len(word) for word in name.split(" ")), table[name].str.len().max()) for name in names]
    return sum(cells) + 2 * len(names) + 1


def _print_table(console: Any, title: str, table: pd.DataFrame) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in table.columns:
        # Headings break at every space, so that a column is as wide as its cells; only a variant may be folded.
        drawn.add_column(
            Text(name if name == "variant" else name.replace(" ", "\n")),
            justify="left" if name in TEXT_COLUMNS else "right",
            vertical="top",
            overflow="fold",
            no_wrap=name != "variant",
        )
    for row in table.itertuples(index=False):
        drawn.add_row(*[Text(cell) for cell in row])
    console.print(Text(title, style="bold"), drawn, sep="\n")


def _print_list(console: Any, title: str, table: pd.DataFrame) -> None:
    from rich.text import Text

    console.print(Text(title))
    for row in table.to_dict("records"):
        console.print(Text(f"- {row['variant']}"))
        for name, cell in row.items():
            if cell and name != "variant":
                console.print(Text(f"  {name}: {cell}"))
