"""The length from which a mechanism restricts what a token can attend to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from lra_bench.contracts import TaskSpec
from lra_bench.contracts.measurement import Column, Measurement


class Restriction(TypedDict):
    """The length from which the built mechanism restricts what a token can attend to.

    ``from_length`` is the smallest such length in tokens: 0 for mechanisms that are not attention to tokens at any
    length, None for attention that is unrestricted at every length. ``row_length`` is the length of the longest row of
    the task. If ``from_length`` is larger, the cell measures full attention.
    """

    from_length: int | None
    row_length: int


def unrestricted_at(run: Any) -> int | None:
    """Return the length of the longest row if the mechanism restricts nothing at it, otherwise None."""
    found: Restriction | None = run.record.restriction
    if found is None or found["from_length"] is None or found["row_length"] >= found["from_length"]:
        return None
    return found["row_length"]


class Restricted(Measurement):
    """The length from which the mechanism of a cell restricts attention, which is known before training."""

    name = "restriction"
    Result = Restriction
    columns = (
        Column(
            name="restricts_from",
            help="smallest length in tokens at which the mechanism restricts what a token can attend to; 0 if it is "
            "not attention to tokens at any length; empty if it restricts nothing, or unknown",
            source="restriction.from_length",
            after=None,
            dtype="Int64",
        ),
        Column(
            name="unrestricted_at",
            help="length of the longest row in tokens if it is below restricts_from, so that full attention is "
            "measured; otherwise empty",
            run=unrestricted_at,
            after=None,
            dtype="Int64",
        ),
    )

    @staticmethod
    def of(model: Any, spec: TaskSpec) -> Restriction | None:
        """Return the section of a built model, None if its class does not define the length."""
        if (restricts_from := getattr(model, "restricts_from", None)) is None:
            return None
        try:
            return {"from_length": restricts_from(), "row_length": spec.train_length}
        except NotImplementedError:
            return None

    @classmethod
    def facts(cls, section: Restriction) -> Iterator[tuple[str, str]]:
        """Yield the length from which attention is restricted."""
        length, longest = section["from_length"], section["row_length"]
        if length is None:
            yield "attention", "restricted at no length"
        elif length == 0:
            yield "attention", "restricted at every length"
        else:
            yield "attention", f"restricted from {length:,} tokens; the longest row has {longest:,}"
