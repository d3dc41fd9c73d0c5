"""Comparison of two variants named by the user, on every task and protocol that both finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from lra_bench.contracts import UserError
from lra_bench.measurements.pretraining import objective_of
from lra_bench.progress import bar
from lra_bench.records.names import find_paths
from lra_bench.records.reference import load_records, reference_root
from lra_bench.records.schema import Record

from .claims import Key, Place, Ranking, key_of, place_of, rankings
from .naming import Names, explain_hidden, find_variant, select
from .pair_tests import Comparison, compare_pair

DIFFERENT_PROTOCOLS = "the protocol keys modified for A and B differ, so the variants differ in more than the model"


def compare_stored(
    a: str,
    b: str,
    results: str | os.PathLike[str] | None = None,
    reference: str | os.PathLike[str] | None = None,
    tasks: Names = None,
    protocol: str | None = None,
) -> tuple[str, str, list[Comparison]]:
    """Compare two variants of a results folder and the reference boards, see ``compare``; each may name a record."""
    root, records = load_records(results, reference)
    if not records:
        raise UserError(f"--results {root}: contains no records yet; run lra-bench bench first")
    models = {record.key.model for record in records}

    def paths(text: str) -> list[Path]:
        return [] if text in models else find_paths(text, root, reference_root(reference))

    return compare(records, a, b, tasks, protocol, paths)


def compare(
    records: Iterable[Record],
    a: str,
    b: str,
    tasks: Names = None,
    protocol: str | None = None,
    paths: Callable[[str], Collection[Path]] = lambda text: (),
) -> tuple[str, str, list[Comparison]]:
    """Compare two variants on every task and protocol that both finished.

    Args:
        records: The records to search.
        a: The name of variant A, as described in ``find_variant``.
        b: The name of variant B.
        tasks: The tasks to compare on, by default all.
        protocol: The protocol to compare under, by default all that are ranked.
        paths: A function that returns the paths of the records that a text names, empty if the text names a variant.

    Returns:
        The full names of A and B, and one comparison per task, task version, protocol and data.

    Raises:
        UserError: If a name matches no variant or more than one, if the variants share no task and protocol, or if all
            records are hidden.
    """
    records = list(records)
    if explanation := explain_hidden(records, tasks, protocol):
        raise UserError(explanation)
    chosen = select(records, tasks, protocol)
    name_a, all_a = find_variant(chosen, a, "A", paths(a))
    name_b, all_b = find_variant(chosen, b, "B", paths(b))
    if name_a == name_b:
        raise UserError(f"A={a} B={b}: both are the same variant {name_a}; choose two variants")
    found = rankings(chosen)
    places_a, places_b = _places(all_a, name_a, found), _places(all_b, name_b, found)
    shared = sorted(places_a.keys() & places_b.keys(), key=lambda place: tuple(map(str, place)))
    if not shared:
        where = [" and ".join(sorted({f"{p[0]} · {p[2]}" for p in places})) for places in (places_a, places_b)]
        raise UserError(
            f"A={a} B={b}: the variants have no finished task and protocol in common "
            f"({name_a}: {where[0] or 'nothing'}; {name_b}: {where[1] or 'nothing'})"
        )
    comparisons = []
    with bar(len(shared), "comparing", unit="tasks") as advance:
        for place in shared:
            comparisons.append(_compare(places_a[place], places_b[place]))
            advance(1, str(place[0]))
    return name_a, name_b, comparisons


PRETRAINED_DIFFERENTLY = "the pretraining of A and B differs"

Where = tuple[Ranking, Key]


def _places(records: Sequence[Record], name: str, found: dict[Place, Ranking]) -> dict[tuple[str | None, ...], Where]:
    """Return the ranking and the key of a variant for each task, task version, protocol and missing data."""
    places: dict[tuple[str | None, ...], Where] = {}
    for record in sorted(records, key=lambda record: record.key):
        ranking, key = found.get(place_of(record)), key_of(record)
        if ranking is None or key not in ranking.entries:
            continue
        known = places.setdefault(place_of(record)[:4], (ranking, key))
        if known[1] != key:
            raise UserError(
                f"{name}: matches several rows with different hashes on {record.key.task}; "
                f"add #{known[1][2]} or #{key[2]}"
            )
    return places


def _compare(a: Where, b: Where) -> Comparison:
    (ranking, key_a), (other, key_b) = a, b
    if ranking is other:
        return ranking.compare(key_a, key_b)
    found = compare_pair(ranking.place[:4], ranking.entries[key_a], other.entries[key_b])
    objectives = [objective_of(side.entries[key].first.config) for side, key in (a, b)]
    found.remarks.append(PRETRAINED_DIFFERENTLY if objectives[0] != objectives[1] else DIFFERENT_PROTOCOLS)
    return found
