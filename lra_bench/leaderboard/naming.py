"""Select records by task and protocol, and find the variant that a user names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from lra_bench.build import suggest
from lra_bench.config.task_groups import ALL, expand_tasks
from lra_bench.contracts import UserError
from lra_bench.records.schema import Record

UNRANKED = ("smoke",)
"""Protocols whose scores are meaningless; tables and figures exclude them unless the user selects one by name."""

COMMAND_LINE, PYTHON = "--{} {}", "{}={}"
"""Formats of an option and its value in messages."""


def select(
    records: Sequence[Record], task: str | None = None, protocol: str | None = None, spelling: str = COMMAND_LINE
) -> list[Record]:
    """Return the records of one task or group of tasks and of one protocol, by default all except ``UNRANKED``.

    Args:
        records: The records to select from.
        task: The task or the group of tasks, by default all tasks.
        protocol: The protocol, by name (all its versions) or with its version (``small-v2``); by default all except
            ``UNRANKED``.
        spelling: The format of options in error messages.

    Returns:
        The selected records; if the list is empty, ``explain_hidden`` states why.

    Raises:
        UserError: If there are records, but none of the task, of a task of the group, or of the protocol.
    """
    of_task = _of_task(records, task)
    names = {
        "task": {record.key.task for record in records},
        "protocol": {name for record in records for name in (record.key.protocol_name, record.key.protocol)},
    }
    for option, wanted, found in (("task", task, of_task), ("protocol", protocol, ())):
        known = names[option]
        if wanted is not None and records and not found and wanted not in known:
            raise UserError(f"{spelling.format(option, wanted)}: no record of that {option}{suggest(wanted, known)}")
    if protocol is None:
        return [record for record in of_task if record.key.protocol_name not in UNRANKED]
    chosen = [record for record in of_task if record.key.has_protocol(protocol)]
    if records and not chosen:
        named = f"{spelling.format('task', task)} {spelling.format('protocol', protocol)}"
        raise UserError(f"{named}: no record of that task and protocol")
    return chosen


def explain_hidden(
    records: Iterable[Record], task: str | None = None, protocol: str | None = None, spelling: str = COMMAND_LINE
) -> str:
    """Return which option shows the records if ``select`` excludes all of them because of ``UNRANKED``.

    The result is a sentence without a full stop; it is empty in all other cases.
    """
    found = [record.key.protocol_name for record in _of_task(list(records), task)]
    if not found or protocol is not None or not set(found) <= set(UNRANKED):
        return ""
    protocol, several = found[0], len(found) > 1
    counted = f"{len(found)} records of protocol {protocol} are" if several else f"1 record of protocol {protocol} is"
    return f"{counted} hidden; {spelling.format('protocol', protocol)} shows {'them' if several else 'it'}"


def _of_task(records: Sequence[Record], task: str | None) -> list[Record]:
    """Return the records of a task or of the tasks of a group, all records for None and ``ALL``.

    A task of ``records`` precedes a group of the same name.
    """
    if task is None or task == ALL:
        return list(records)
    names = {task} if any(record.key.task == task for record in records) else set(expand_tasks([task]))
    return [record for record in records if record.key.task in names]


def find_variant(
    records: Iterable[Record], text: str, option: str, paths: Collection[Path] = ()
) -> tuple[str, list[Record]]:
    """Return the name and the records of the variant that ``text`` describes.

    A name consists of the model and its differences from the model's file, in any order, with or without dots between
    them: ``performer``, ``performer features=64 rope``. Keys of a modified protocol and the hash (``#0a1b2c3d``)
    distinguish variants with the same name. Part of a name suffices if it matches one variant only. A variant of a
    reference board needs ``reference`` only if the user's records contain the same variant, finished.

    Args:
        records: The records to search.
        text: The name of a variant.
        option: The name of the option that ``text`` was given for, used in error messages.
        paths: The paths of records, if ``text`` names records. The result is then the variant that all of them belong
            to, with every seed.

    Returns:
        The full name of the variant and its records.

    Raises:
        UserError: If no variant or more than one matches, or if the records of ``paths`` are not among ``records``.
    """
    records = list(records)
    if paths:
        named = {f"{full_name(record)} #{record.key.hash}" for record in records if record.path in paths}
        if len(named) > 1:
            names = "; ".join(sorted(named))
            raise UserError(f"{option}={text}: matches {len(named)} variants; choose one of them: {names}")
        if not named:
            raise UserError(
                f"{option}={text}: the record is not among the compared records; set --task and --protocol to those of "
                f"the record (--protocol {UNRANKED[0]} for a {UNRANKED[0]} cell)"
            )
        text = named.pop()
    # A run that was interrupted or failed does not hide the finished row of a reference board.
    finished = {_variant_of(record) for record in records if record.status == "ok"}
    records = [record for record in records if record.status == "ok" or _variant_of(record) not in finished]
    words = _words(text)
    hashes = {word.removeprefix("#") for word in words if word.startswith("#")}
    wanted = {word for word in words if not word.startswith("#")}
    variants: dict[str, list[Record]] = {}
    for record in records:
        variants.setdefault(full_name(record), []).append(record)
    found = (
        [name for name in variants if _words(name) == wanted]
        or [name for name in variants if wanted and _words(name) == wanted | {"reference"}]
        or [name for name in variants if wanted and _words(name) > wanted]
    )
    if not found:
        models = {record.key.model for members in variants.values() for record in members}
        raise UserError(f"{option}={text}: no record of this variant{suggest(next(iter(wanted), ''), models)}")
    if len(found) > 1:
        raise UserError(
            f"{option}={text}: matches {len(found)} variants; choose one of them: {'; '.join(sorted(found))}"
        )
    name = found[0]
    members = [record for record in variants[name] if not hashes or record.key.hash in hashes]
    if not members:
        known = sorted({record.key.hash for record in variants[name]})
        raise UserError(f"{option}={text}: no record with this hash; choose #{', #'.join(known)}")
    return name + "".join(f" #{hash}" for hash in sorted(hashes)), members


def full_name(record: Record) -> str:
    """Return the variant's name with the modified protocol keys, and ``reference`` if it is from a reference board."""
    return " · ".join([record.variant_name, *record.protocol_modified, *(["reference"] if record.reference else [])])


def _variant_of(record: Record) -> tuple[str, str, str, str]:
    key = record.key
    return key.task, key.protocol, key.model, key.hash


def _words(text: str) -> set[str]:
    return {word for word in re.split(r"[\s·,]+", text) if word}
