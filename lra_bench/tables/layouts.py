"""The layouts of the leaderboard: data, sections, file name, title and note of each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .formatting import Section
from .overview import in_task_order, overview
from .published import load_published, published_sections, reproduction, reproduction_sections
from .sections import long_sections, wide_sections
from .table import RANKED_TOGETHER, leaderboard


@dataclass(frozen=True)
class Layout:
    """A kind of table.

    ``make`` builds the data from records, with claims relative to the variant of the given name (by default the
    transformer), and from the data of ``long`` if it is given. ``sections`` splits the data into titled tables of text,
    of which those of a terminal may be ``short``. Rows that share the columns ``together`` are ordered together,
    ``file`` is the file name without suffix, and ``note`` explains the table to its readers.
    """

    make: Callable[..., pd.DataFrame]
    sections: Callable[..., Iterable[Section]]
    together: Sequence[str]
    file: str
    title: str
    note: str

    def arranged(self, frame: pd.DataFrame, tasks: Sequence[str] = (), models: Sequence[str] = ()) -> pd.DataFrame:
        """Return the rows of tasks and models in their order, within the rows that are ordered together.

        Published numbers are selected by the label that a source gives the model. Raises ``UserError`` if there is none
        of a task or model; records are selected before (``select``).
        """
        frame = in_task_order(frame, tasks) if tasks and "task" not in frame else frame
        keys = {"together": frame.groupby([*self.together], sort=False, dropna=False).ngroup()}
        kept = pd.Series(True, frame.index)
        for column, names in (("model", models), ("task", tasks)):
            if names and column in frame and len(frame):
                place = frame[column].str.casefold().map({name.casefold(): at for at, name in enumerate(names)})
                missing = [name for at, name in enumerate(names) if not (place == at).any()]
                if missing and "source_title" in frame:
                    similar = suggest(missing[0], set(frame[column].dropna()))
                    raise UserError(f"--{column}s {missing[0]}: no published number of that {column}{similar}")
                kept &= place.notna() | frame[column].isna()
                keys = {**keys, column: place} if column == "model" else {column: place, **keys}
        order = pd.DataFrame(keys)[kept].sort_values([*keys], kind="stable").index
        return frame.loc[order].reset_index(drop=True)


LAYOUTS = {
    "long": Layout(
        lambda records, against=None, board=None: leaderboard(records, against=against),
        long_sections,
        RANKED_TOGETHER,
        "leaderboard",
        "Leaderboard",
        "Score with its 95 % confidence interval: over test examples with one seed, over seeds with five or more; "
        "with two to four seeds, or if the seeds lie on two levels, the scores of the seeds are shown instead. The "
        "floor is the strongest baseline without a model on the same examples. A seed has learned if its score "
        "exceeds the floor by more than its interval; ° marks rows without such a seed. Rows with three or more seeds "
        "that exceed the floor in every seed have a rank. Bold: the best of at least three seeds, and rows not shown "
        "to be worse. Each row is compared with the reference row on the same test examples, with Holm's correction. "
        "The source names the reference board that a row belongs to; rows without one are your own. Speed and memory "
        "are those of the named hardware and sequence length. Comparable with transformer: protocol unmodified and "
        "body parameters within 10 % of the transformer's.",
    ),
    "wide": Layout(
        overview,
        wide_sections,
        ("protocol", "section", "kind"),
        "leaderboard_wide",
        "Leaderboard, one table per protocol",
        "One table of systems and tasks per protocol; empty cells were not measured. Rows are sorted by the number of "
        "tasks and by mean skill, the score normalised so that the strongest floor is 0 and a perfect score is 1. "
        "Scores are in percent or bits per character: with one seed, or with five or more seeds, ± the wider half of "
        "their 95 % confidence interval and the number of seeds; otherwise the scores of the seeds. ° marks rows in "
        "which no seed is shown to exceed the floor (baseline without a model). Bold: the best of at least three "
        "seeds that exceed the floor, and rows not shown to be worse. avg5 excludes Path-X; avg6_fail50 includes it "
        "and counts a failed Path-X as 50 %; both are given only if every task was run. Speed and memory are those of "
        "a training step, relative to the transformer on the same hardware. The source names the reference board that "
        "a row belongs to; rows without one are your own. Long Range Arena scores depend on budget and pretraining "
        "(arXiv 2310.02980), and short-range dependencies explain much of them (arXiv 2501.14850): compare them with "
        "the floors and with the skill kept on longer inputs.",
    ),
    "published": Layout(
        lambda records, against=None, board=None: load_published(),
        published_sections,
        ("file", "source_title", "table"),
        "published",
        "Published numbers",
        "Numbers as printed in their sources. They were obtained under different protocols and must not be ranked "
        "with measured rows. avg5 and avg6_fail50 are computed from the scores of each row; a printed average that "
        "differs is marked as a misprint.",
    ),
    "reproduction": Layout(
        lambda records, against=None, board=None: reproduction(records),
        reproduction_sections,
        ("task", "protocol"),
        "reproduction",
        "Reproduction of published scores",
        "Scores of the protocol small, whose sizes and recipe are those of Xiong et al. 2021 (arXiv 2102.03902), one "
        "per seed, next to the lowest and the highest accuracy that papers with this set-up report for the model, and "
        "the number of these papers. Rows are not ranked, because the papers select weights, and in part input "
        "lengths, in other ways.",
    ),
}


def find_layout(name: str) -> Layout:
    """Return the layout called ``name``. Raises ``UserError`` if there is none."""
    if name not in LAYOUTS:
        raise UserError(f"--layout {name}: unknown layout{suggest(name, set(LAYOUTS))}")
    return LAYOUTS[name]
