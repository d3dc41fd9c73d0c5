"""Escape text from records and files for terminals and spreadsheets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

REPLACEMENT = "\ufffd"

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def printable(text: str) -> str:
    """Replace control characters, bidirectional overrides and lone surrogates with U+FFFD.

    Newlines and tabs are kept.
    """
    return text if text.isprintable() else _UNPRINTABLE.sub(REPLACEMENT, text)


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of a table for CSV, in which spreadsheets interpret no text and no column name as a formula.

    Text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break is prefixed with an apostrophe; carriage
    returns become newlines. Numbers are kept.
    """
    import pandas as pd

    safe = frame.rename(columns=_quoted)
    for column in range(safe.shape[1]):
        if not pd.api.types.is_numeric_dtype(safe.dtypes.iloc[column]):
            safe.isetitem(column, safe.iloc[:, column].map(_quoted, na_action="ignore").array)
    return safe


def _quoted(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    # The CSV writer does not quote a carriage return, so it would start a new row.
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) else text
