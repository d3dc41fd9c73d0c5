"""Figures that measurements declare: the score over a measured number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra_bench.measurement import ScoreOver
from lra_bench.records.schema import Record
from lra_bench.tables.seeds import over_seeds

from .layout import Sheet
from .scatter import Cost, exclusions_by_cost
from .style import SMALL
from .ticks import length_name, logarithmic
from .variants import IDENTITY, PANEL, SHEET, scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class ScoreFigure:
    """The figure ``shown`` of the section ``name`` of records, with the members of a ``FigureModule``."""

    def __init__(self, shown: ScoreOver, name: str) -> None:
        self.__doc__, self.RUN, self._shown, self._name = shown.help, shown.remedy, shown, name
        self._columns = list(shown.values)

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        """Return for each record the reason why it is not drawn, empty if it is drawn."""
        known = [self._values(record)[0] is not None for record in records]
        return exclusions_by_cost(records, known, self._shown.missing)

    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return one row per variant, aggregated over seeds, with the first known values of a seed."""
        import pandas as pd

        measured = pd.DataFrame([self._values(record) for record in records], columns=self._columns, dtype=float)
        frame = pd.concat([scores(records), measured], axis=1)
        return over_seeds(frame, [*SHEET, *PANEL, *IDENTITY], dict.fromkeys(self._columns, "first"))

    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Draw one panel per task."""
        column, *lengths = self._columns
        less = self._shown.less_is_better
        panel = [*PANEL, *lengths]
        cost = Cost(column, None, None, less, panel, self._decorate, of_machine=False)
        yield from cost.draw(data, width)

    def _values(self, record: Record) -> list[float | None]:
        section = record.section(self._name)
        return [None if section is None else value(section) for value in self._shown.values.values()]

    def _decorate(self, ax: Axes, rows: pd.DataFrame) -> None:
        if self._shown.logarithmic:
            logarithmic(ax, "x")
        lengths = {name: length_name(int(rows[name].iloc[0])) for name in self._columns[1:]}
        ax.set_xlabel(self._shown.label.format(**lengths), fontsize=SMALL)
