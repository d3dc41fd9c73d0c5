"""From what a user types to the runs of one variant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from lra_bench.build import suggest
from lra_bench.contracts import UserError
from lra_bench.progress import say
from lra_bench.records.schema import Record

UNRANKED = ("smoke",)
"""Protocols whose numbers mean nothing: tables and figures leave them out unless they are asked for by name."""


def select(records: Sequence[Record], task: str | None = None, protocol: str | None = None) -> list[Record]:
    """The records of one task and one protocol, by default of all except ``UNRANKED``.

    A line on stderr says what was left out if nothing else is there. Raises ``UserError`` if there are records, but
    none of the task or the protocol.
    """
    for option, wanted in (("task", task), ("protocol", protocol)):
        known = {getattr(record.key, option) for record in records}
        if wanted is not None and records and wanted not in known:
            raise UserError(f"--{option} {wanted}: no record of that {option}{suggest(wanted, known)}")
    of_task = [record for record in records if task in (None, record.key.task)]
    if protocol is None:
        ranked = [record for record in of_task if record.key.protocol not in UNRANKED]
        if of_task and not ranked:
            say(f"{len(of_task)} records of protocol {UNRANKED[0]} are left out; --protocol {UNRANKED[0]} shows them.")
        return ranked
    chosen = [record for record in of_task if record.key.protocol == protocol]
    if records and not chosen:
        raise UserError(f"--task {task} --protocol {protocol}: no record of that task under that protocol")
    return chosen


def find_variant(
    records: Iterable[Record], text: str, option: str, paths: Collection[Path] = ()
) -> tuple[str, list[Record]]:
    """The name and the records of the variant that ``text`` means: ``performer``, ``performer features=64 rope``.

    If ``text`` names records, whose ``paths`` are given, it is the variant that all of them belong to, with every seed.
    What differs from the model's file may stand in any order, with dots between or without; keys of a modified protocol
    and the hash (``#0a1b2c3d``) tell rows apart that have one name. Part of a name does where it fits one variant only.
    ``UserError`` names ``option`` and what there is.
    """
    records = list(records)
    if paths:
        named = {f"{full_name(record)} #{record.key.hash}" for record in records if record.path in paths}
        if len(named) > 1:
            told = "; ".join(sorted(named))
            raise UserError(f"{option}={text}: means {len(named)} variants, name one of them: {told}")
        if not named:
            raise UserError(
                f"{option}={text}: its record is not among those compared; set --task and --protocol to its own "
                f"(--protocol {UNRANKED[0]} for a {UNRANKED[0]} cell)"
            )
        text = named.pop()
    words = _words(text)
    hashes = {word.removeprefix("#") for word in words if word.startswith("#")}
    wanted = {word for word in words if not word.startswith("#")}
    variants: dict[str, list[Record]] = {}
    for record in records:
        variants.setdefault(full_name(record), []).append(record)
    found = [name for name in variants if _words(name) == wanted] or [
        name for name in variants if wanted and _words(name) > wanted
    ]
    if not found:
        models = {record.key.model for members in variants.values() for record in members}
        raise UserError(f"{option}={text}: no record of such a variant{suggest(next(iter(wanted), ''), models)}")
    if len(found) > 1:
        raise UserError(f"{option}={text}: means {len(found)} variants, name one of them: {'; '.join(sorted(found))}")
    name = found[0]
    members = [record for record in variants[name] if not hashes or record.key.hash in hashes]
    if not members:
        known = sorted({record.key.hash for record in variants[name]})
        raise UserError(f"{option}={text}: has no such hash (there is #{', #'.join(known)})")
    return name + "".join(f" #{hash}" for hash in sorted(hashes)), members


def full_name(record: Record) -> str:
    """A variant's name with the protocol keys that the user changed, and ``reference`` for one of a reference board."""
    return " · ".join([record.variant_name, *record.protocol_modified, *(["reference"] if record.reference else [])])


def _words(text: str) -> set[str]:
    return {word for word in re.split(r"[\s·,]+", text) if word}
