"""The base class of figures."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from lra_bench.records.schema import Record

from .layout import Sheet
from .variants import placed


class Figure(ABC):
    """A figure, which selects records, computes a table from them and draws it; its docstring is the caption.

    Attributes:
        remedy: What to run if no record has the data, such as ``run lra-bench bench``.
        missing: Why a record is not drawn, such as ``without a score``.
        of_machine: Whether values depend on the machine; otherwise seeds on different machines are combined
            (``combine_machines``).
    """

    remedy = "run lra-bench bench"
    missing = "without a score"
    of_machine = False

    @property
    def caption(self) -> str:
        """What the figure shows; the first line is the caption of its files."""
        return inspect.getdoc(type(self)) or ""

    def rows(self, record: Record) -> Sequence[Mapping[str, Any]]:
        """Return the points of a record, by default none. Override it if ``table`` uses them."""
        return ()

    def has_data(self, record: Record) -> object:
        """Return whether a record is drawn, by default if it has points."""
        return self.rows(record)

    def exclusions(self, records: Sequence[Record]) -> list[str]:
        """Return one string per record: empty if it is drawn, otherwise the reason, such as ``missing``."""
        return ["" if self.has_data(record) else self.missing for record in records]

    def points(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return the points of all records with the columns ``SHEET``, ``PANEL`` and ``IDENTITY`` (``variants.py``)."""
        points = placed(records, [self.rows(record) for record in records])
        numbers = [name for name in ("score", "low", "high", "floor") if name in points]
        return points.assign(**{name: pd.to_numeric(points[name]) for name in numbers})

    @abstractmethod
    def table(self, records: Sequence[Record]) -> pd.DataFrame:
        """Return the data of one or more records that are drawn, empty if there is none.

        There is one row per point or cell, with the columns of ``points`` except the seed.
        """

    @abstractmethod
    def draw(self, data: pd.DataFrame, width: float) -> Iterator[Sheet]:
        """Yield one ``Sheet`` per file from the result of ``table``, with pages of a ``width`` in inches.

        Pages may be generated lazily. The data of a sheet are the drawn rows, with a column ``label``.
        """
