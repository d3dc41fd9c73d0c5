"""Claims of a ranking: comparisons with a reference row, corrected together, and the best rows.

Tables, figures and ``compare`` take their claims from ``Ranking``, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from lra_bench.config.hashing import SECTIONS
from lra_bench.measurements.pretraining import objective_of
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import MIN_SEEDS, MOST_COMPARED, holm, tie_groups

from .pair_tests import A, Comparison, Entry, compare_pair, uncorrected_p, with_verdict
from .runs import PRETRAINED, missing_data, section_of

REFERENCE = "transformer"
"""Name of the variant that others are compared with by default."""

FROM_SCRATCH = "no pretraining"
"""Name of the other side of all comparisons of a table of pretrained systems."""

Place = tuple[str, str | None, str, str, str]
"""Task, version of the task, protocol, what the data lacks, and objective of pretraining with the modified options."""


class Key(NamedTuple):
    """Key of a variant within its ranking.

    ``board`` is empty for the user's own records, ``hash`` is that of the configuration.
    """

    model: str
    board: str
    hash: str


@dataclass
class Ranking:
    """The finished variants of one task under one protocol, by key.

    Comparisons are computed when they are first requested.
    """

    place: Place
    entries: Mapping[Key, Entry]
    _corrected: dict[Key, dict[Key, Comparison]] = field(default_factory=dict, repr=False)

    def reference(self, name: str = REFERENCE, board: str = "") -> Key | None:
        """Return the key of the variant with this name, or None.

        If there are several, those of ``board`` come first, then the user's own, then the others in sorted order.
        """
        found = [key for key, entry in self.entries.items() if entry.name == name]
        return min(found, key=lambda key: (key.board != board, key.board, key), default=None)

    def against(self, reference: Key) -> Mapping[Key, Comparison]:
        """Return the comparison of each other variant (A) with ``reference`` (B).

        The p-values are corrected together by Holm's method.
        """
        if reference not in self._corrected:
            pairs = {key: self._pair(key, reference) for key in self.entries if key != reference}
            self._corrected[reference] = _corrected(pairs, self.entries[reference].name)
        return self._corrected[reference]

    def compare(self, a: Key, b: Key) -> Comparison:
        """Return the comparison of two variants.

        The correction is that of the comparisons of all variants with one of the two: the default reference if it is
        one of them, otherwise the better one. Hence the result does not depend on the order of ``a`` and ``b``, and it
        equals that of a table whose reference row is the chosen one.
        """
        better = min((a, b), key=lambda key: (self._cost(key), key))
        if (self.reference() if self.reference() in (a, b) else better) == b:
            return self.against(b)[a]
        found = self.against(a)[b]
        return with_verdict(self._pair(a, b), found.p_holm, found.together, found.against)

    @cached_property
    def winners(self) -> frozenset[Key]:
        """The best variant and those that tests do not show to be worse, empty if none may be called the best.

        Only variants with ``MIN_SEEDS`` or more seeds, each of which clears the strongest floor, can be winners.
        """
        able = [key for key in self.with_seeds() if self.entries[key].summary.clears_floor]
        tested = {key: found for key in able[1:] if (found := self.compare(able[0], key)).p is not None}
        return frozenset((*able[:1], *(key for key, found in tested.items() if not found.verdict.startswith(A))))

    def separated(self) -> dict[tuple[Key, Key], int]:
        """Return for each tested pair, in both orders, 1 if the first is better, -1 if the second is, otherwise 0.

        The p-values of all tested pairs are corrected together by Holm's method. Every difference found is also found
        by ``compare``, because more comparisons are corrected together here. With more than ``MOST_COMPARED`` variants
        only pairs with the best one are tested, because there are too many others.
        """
        keys = self.with_seeds()
        firsts = keys if len(keys) <= MOST_COMPARED else keys[:1]
        pairs = [(a, b) for place, a in enumerate(firsts) for b in keys[place + 1 :]]
        tests = {pair: found for pair in pairs if (found := uncorrected_p(*map(self.entries.__getitem__, pair)))}
        corrected = holm([p for p, _, _ in tests.values()]).tolist()
        separated: dict[tuple[Key, Key], int] = {}
        for ((a, b), (_, better, level)), p in zip(tests.items(), corrected, strict=True):
            separated |= {(a, b): better * (p <= level), (b, a): -better * (p <= level)}
        return separated

    def with_seeds(self) -> list[Key]:
        """Return the variants with ``MIN_SEEDS`` or more seeds, best score first."""
        keys = sorted(self.entries, key=lambda key: (self._cost(key), key))
        return [key for key in keys if len(self.entries[key].records) >= MIN_SEEDS]

    def _pair(self, a: Key, b: Key) -> Comparison:
        return compare_pair(self.place[:4], self.entries[a], self.entries[b])

    def _cost(self, key: Key) -> float:
        """Return the mean score with the sign with which a smaller value is better."""
        entry = self.entries[key]
        return -entry.summary.score if entry.first.higher_is_better else entry.summary.score


def key_of(record: Record) -> Key:
    """Return the key of a record's variant within its ranking."""
    return Key(record.key.model, record.reference, record.key.hash)


def place_of(record: Record) -> Place:
    """Return the ranking that a record belongs to."""
    version = record.data["version"] if record.data else None
    rules = ", ".join(filter(None, (objective_of(record.config), *record.protocol_modified)))
    return record.key.task, version, record.key.protocol, missing_data(record), rules


def place_name(row: Mapping[Any, Any]) -> Place:
    """Return the ranking that a row of the long table, or of the data of a figure, belongs to."""
    objective = row.get("pretraining") or (row["section"] if row["section"] in PRETRAINED else "")
    version = row["task_version"] if isinstance(row["task_version"], str) else None
    rules = ", ".join(filter(None, (objective, row["modified"])))
    return row["task"], version, row["protocol"], row["data_lacks"], rules


def row_key(row: Mapping[Any, Any]) -> Key:
    """Return the key of a row of the long table within its ranking."""
    return Key(row["model"], row["reference"], row["hash"])


def rankings(records: Iterable[Record]) -> dict[Place, Ranking]:
    """Group finished records into rankings, without those whose searched learning rate is at an end of the grid.

    The same seed of a variant on several machines is one experiment; the first in sorted order is used.
    """
    found: dict[Place, dict[Key, dict[int, Record]]] = {}
    for record in sorted(records, key=lambda record: (record.reference, record.key)):
        if record.status == "ok" and record.score() is not None and section_of(record) != "edge":
            seeds = found.setdefault(place_of(record), {}).setdefault(key_of(record), {})
            seeds.setdefault(record.key.seed, record)
    return {
        place: Ranking(place, {key: Entry(key, seeds) for key, seeds in entries.items()})
        for place, entries in found.items()
    }


def gains(found: Mapping[Place, Ranking], place: Place) -> dict[Key, Comparison]:
    """Return the comparison of each pretrained variant of a ranking (A) with the same one without pretraining (B).

    The p-values are corrected together by Holm's method. Variants are left out if they are not pretrained, or if they
    have no finished record without pretraining under the same protocol.
    """
    pairs = {
        key: compare_pair(place[:4], entry, plain)
        for key, entry in found[place].entries.items()
        if (plain := without_pretraining(entry, found, place)) is not None
    }
    return _corrected(pairs, FROM_SCRATCH)


def without_pretraining(entry: Entry, found: Mapping[Place, Ranking], place: Place) -> Entry | None:
    """Find the corresponding variant without pretraining.

    A variant with the same configuration is preferred to one with the same name, because ``pretrain=causal`` trains a
    causal network; then one of the same board is preferred. Returns None if there is no such variant.
    """
    objective = objective_of(entry.first.config)
    modified = [option for option in entry.first.protocol_modified if not option.startswith("pretrain.")]
    ranking = found.get((*place[:4], ", ".join(modified)))
    if not objective or ranking is None:
        return None

    def system(entry: Entry) -> list[Any]:
        return [entry.first.key.model, *(entry.first.config.get(section) for section in SECTIONS)]

    same = (other.name for other in ranking.entries.values() if system(other) == system(entry))
    plain = ranking.reference(next(same, entry.name.removesuffix(f" · {objective}")), entry.first.reference)
    return ranking.entries[plain] if plain else None


def _corrected(pairs: Mapping[Key, Comparison], against: str) -> dict[Key, Comparison]:
    """Return comparisons with the same row, with their verdicts after Holm's correction of all tested ones."""
    tested = {key: comparison.p for key, comparison in pairs.items() if comparison.p is not None}
    p = dict(zip(tested, holm([*tested.values()]).tolist(), strict=True))
    return {key: with_verdict(each, p.get(key), len(tested), against) for key, each in pairs.items()}


def tie_letters(ranking: Ranking) -> dict[Key, str]:
    """Return the letters of each variant: two variants with letters differ significantly unless they share one.

    Variants with fewer than ``MIN_SEEDS`` seeds have no letter.
    """
    separated, keys = ranking.separated(), ranking.with_seeds()
    letters = tie_groups([[bool(separated.get((a, b))) for b in keys] for a in keys])
    return dict(zip(keys, letters, strict=True))
