"""The interface of figure modules listed in ``FIGURES``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas as pd

    from lra_bench.records.schema import Record

    from .layout import Sheet


class FigureModule(Protocol):
    """A module that selects records, computes a table from them and draws it.

    The members are used in the order below. ``draw`` receives all data from the table, which is also written as CSV and
    may be sent to another process.
    """

    RUN: str
    """The end of the error message if there is no data: what to run, such as ``run lra-bench bench``."""

    def exclusions(self, records: Sequence[Record], /) -> Sequence[str]:
        """Return one string per record: empty if it is drawn, otherwise the reason, such as ``without a score``.

        Equal reasons are counted in one line on stderr.
        """

    def table(self, records: Sequence[Record], /) -> pd.DataFrame:
        """Return the data of the figure, one row per point or cell, empty if there is none.

        ``records`` are one or more records for which ``exclusions`` returned an empty string. The columns are those of
        ``SHEET``, ``PANEL`` and ``IDENTITY`` in ``variants.py`` (protocol, task, model, variant, hardware, …) and those
        specific to the figure. ``section`` is that of ``section_of``, such as ``ranked``.
        """

    def draw(self, data: pd.DataFrame, width: float, /) -> Iterator[Sheet]:
        """Yield one ``Sheet`` per file, with the parts of its name, its pages and its data.

        ``data`` is the result of ``table``, or its rows of one protocol and section; ``width`` is the width of a page
        in inches. Pages are ``matplotlib`` figures that are saved sequentially and may be generated lazily, as in
        ``layout.pages``. The data of a sheet are the drawn rows, with a column ``label`` that names each variant.
        """
