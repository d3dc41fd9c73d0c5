"""The contract of a figure: what each module listed in ``FIGURES`` defines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

    from .layout import Sheet


class FigureModule(Protocol):
    """A module that selects records, makes a table of them and draws it.

    The members are called in the order below. ``draw`` gets all it shows from the table, which is also written as CSV
    and may be drawn in another process.
    """

    RUN: str
    """The end of the error message if there is nothing to draw: what to run, as ``run lra-bench bench``."""

    def lacking(self, records: Sequence[Record], /) -> Sequence[str]:
        """Return one string per record: empty if the figure shows it, else why not, as ``without a score``.

        Equal reasons are counted together in one line on stderr.
        """

    def table(self, records: Sequence[Record], /) -> pd.DataFrame:
        """Return the numbers of the figure, one row per point or cell, empty if there are none.

        ``records`` are one or more for which ``lacking`` returned an empty string. The columns are those of ``SHEET``,
        ``PANEL`` and ``IDENTITY`` in ``variants.py`` (protocol, task, model, variant, hardware, …) beside the figure's
        own. ``section``, one of ``SHEET``, is ``modified`` for records with a changed protocol, else ``ranked``.
        """

    def draw(self, data: pd.DataFrame, width: float, /) -> Iterator[Sheet]:
        """Yield a ``Sheet`` per file: the parts of its name, its pages and its numbers.

        ``data`` is what ``table`` returned, or its rows of one protocol and section; ``width`` is that of a page in
        inches. Pages are ``matplotlib`` figures and may be generated lazily, as ``layout.pages`` does: they are saved
        one after the other. A sheet's numbers are the rows drawn, with a column ``label`` that names each variant.
        """
