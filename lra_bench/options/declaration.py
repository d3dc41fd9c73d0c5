"""Declare options as attributes of dataclasses, each with its default and the rule that its values satisfy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

LARGEST_FLOAT = 1e100
"""Upper bound of options and of stored numbers with a fraction, so that their squares are finite."""

MOST_ENTRIES = 1_000
"""Largest number of entries of a list."""


@dataclass(frozen=True)
class Rule:
    """Rule for the values of an option, or for each entry of a list.

    Attributes:
        requirement: End of the error message, such as ``must be at least 1``.
        allows: Function that returns whether a value satisfies the rule.
        types: Types of the values that are checked; null and other types satisfy every rule.
    """

    requirement: str
    allows: Callable[[Any], bool]
    types: type | tuple[type, ...] = (int, float)

    def violated(self, option: str, value: Any) -> str:
        """Return the error message for a value of ``option``, empty if it satisfies the rule."""
        entries = value if isinstance(value, list) else [value]
        if len(entries) > MOST_ENTRIES:
            return f"{option}: has {len(entries):,} entries; at most {MOST_ENTRIES:,} are allowed"
        valid = all(self.allows(each) for each in entries if isinstance(each, self.types))
        return "" if valid else f"{option}={shown(value)}: {self.requirement}"


AT_LEAST_ONE = Rule("must be at least 1 and below 2^63", lambda value: 1 <= value < 2**63)
AT_LEAST_TWO = Rule("must be at least 2; null means none", lambda value: value >= 2)
POSITIVE = Rule("must be above 0 and at most 1e100", lambda value: 0 < value <= LARGEST_FLOAT)
NOT_NEGATIVE = Rule("must be at least 0 and at most 1e100", lambda value: 0 <= value <= LARGEST_FLOAT)
SHARE = Rule("must be at least 0 and below 1", lambda value: 0 <= value < 1)
SEED = Rule("must be at least 0 and below 2^63", lambda value: 0 <= value < 2**63)


def one_of(names: Iterable[str], verb: str = "must be", end: str = "") -> Rule:
    """Return the rule that a value is one of ``names``."""
    names = tuple(names)
    return Rule(f"{verb} one of {', '.join(names)}{end}", names.__contains__, str)


def choose(names: Iterable[str]) -> Rule:
    """Return the rule that a value is one of ``names``, whose message lists them with "or"."""
    *others, last = names
    return Rule(f"choose {', '.join(others)} or {last}", [*others, last].__contains__, str)


def option(default: Any, rule: Rule | None = None, of_system: bool = False) -> Any:
    """Return the field of an option.

    Args:
        default: Default, or a function that returns it.
        rule: Rule for its values.
        of_system: Whether it describes the system instead of the protocol, and changes nothing with its default.
    """
    metadata = {"rule": rule, "of_system": of_system}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def shown(value: Any) -> str:
    """Return a value as it is written in an override."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
