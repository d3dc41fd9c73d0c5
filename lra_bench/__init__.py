"""lra-bench: which sequence model to use on long inputs, measured."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra_bench.leaderboard.query import load_records as load_records

__all__ = ["load_records"]


def __getattr__(name: str) -> Any:
    """``load_records``, imported when it is asked for: listing and planning load no table library."""
    if name in __all__:
        from lra_bench.leaderboard import query

        return getattr(query, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
