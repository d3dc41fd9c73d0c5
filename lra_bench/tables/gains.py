"""Gains of self-pretraining: each pretrained system is compared with the same system without pretraining."""

from __future__ import annotations

from collections.abc import Mapping

from lra_bench.measurements.pretraining import objective_of
from lra_bench.statistics.ties import holm

from .claims import Key, Place, Ranking
from .pair_tests import Comparison, Entry, compare_pair, with_verdict

FROM_SCRATCH = "no pretraining"
"""Name of the other side of all comparisons of a table of pretrained systems."""


def gains(found: Mapping[Place, Ranking], place: Place) -> dict[Key, Comparison]:
    """Return the comparison of each variant of a ranking (A) with the same one without pretraining (B).

    The p-values are corrected together by Holm's method. Variants are left out if they are not pretrained, or if they
    have no finished record without pretraining under the same protocol.
    """
    pairs: dict[Key, Comparison] = {}
    for key, entry in found[place].entries.items():
        if (plain := _without(entry, found, place)) is not None:
            pairs[key] = compare_pair(place[:4], entry, plain)
    tested = [key for key, comparison in pairs.items() if comparison.p is not None]
    corrected = dict(zip(tested, holm([pairs[key].p or 0.0 for key in tested]).tolist(), strict=True))
    return {
        key: with_verdict(comparison, corrected.get(key), len(tested), FROM_SCRATCH)
        for key, comparison in pairs.items()
    }


def _without(entry: Entry, found: Mapping[Place, Ranking], place: Place) -> Entry | None:
    """Return the same variant without pretraining, the user's own before those of boards."""
    objective = objective_of(entry.first.config)
    modified = [option for option in entry.first.protocol_modified if not option.startswith("pretrain.")]
    ranking = found.get((*place[:4], ", ".join(modified)))
    if not objective or ranking is None:
        return None
    plain = ranking.reference(entry.name.removesuffix(f" · {objective}"))
    return None if plain is None else ranking.entries[plain]
