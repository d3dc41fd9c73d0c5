"""Select records by task and protocol, and find the variant that a user names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.config.search import options_of
from lra_bench.config.task_groups import ALL, expand_tasks
from lra_bench.contracts import UserError
from lra_bench.records.schema import Record, short_value, variant_name

from .runs import PRETRAINED, missing_data, section_of

UNRANKED = ("smoke",)
"""Protocols whose scores are meaningless; tables and figures exclude them unless the user selects one by name."""

HIDDEN = {
    "obsolete": "of an earlier protocol version",
    "modified": "with a modified protocol",
    "edge": "whose searched learning rate is at an end of the grid",
}
"""Descriptions of the rows that ``current`` leaves out."""


Names = str | Sequence[str] | None
"""Names in an order, also as one text with commas; None and empty values mean all."""


def names_of(names: Names) -> list[str]:
    """Return the names. Raises ``UserError`` if they are neither a text nor texts."""
    if not isinstance(names, str | Sequence | None) or not all(isinstance(name, str) for name in names or ()):
        raise UserError(f"{names!r}: must be a name or a sequence of names")
    return [name for each in names.split(",") if (name := each.strip())] if isinstance(names, str) else [*(names or ())]


def select(
    records: Sequence[Record], tasks: Names = None, protocol: str | None = None, models: Names = None
) -> list[Record]:
    """Return the records of tasks or groups of tasks, of one protocol and of models.

    Args:
        records: The records to select from.
        tasks: The tasks and groups of tasks, by default all tasks.
        protocol: The protocol, by name (all its versions) or with its version (``small-v2``); by default all except
            ``UNRANKED``. If these are the only ones, the result is empty and ``explain_hidden`` states why.
        models: The names of models, by default all.

    Raises:
        UserError: If there are records, but none of a task, of a task of a group, of the protocol, or of a model.
    """
    chosen = _of_tasks(records, tasks)
    if protocol is None:
        chosen = [record for record in chosen if record.key.protocol_name not in UNRANKED]
    elif records:
        protocols = {name for record in records for name in (record.key.protocol_name, record.key.protocol)}
        if protocol not in protocols:
            raise UserError(f"--protocol {protocol}: no record of that protocol{suggest(protocol, protocols)}")
        chosen = [record for record in chosen if record.key.has_protocol(protocol)]
        if not chosen:
            named = ",".join(names_of(tasks))
            raise UserError(f"--tasks {named} --protocol {protocol}: no record of that task and protocol")
    wanted, known = names_of(models), {record.key.model for record in chosen}
    if chosen and (unknown := [model for model in wanted if model not in known]):
        raise UserError(f"--models {unknown[0]}: no record of that model{suggest(unknown[0], known)}")
    return [record for record in chosen if record.key.model in wanted] if wanted else chosen


def task_order(records: Iterable[Record], tasks: Names) -> list[str]:
    """Return the tasks of the records that are among tasks and groups of tasks, in their order.

    A task of ``records`` precedes a group of the same name. Raises ``UserError`` if there is no record of one.
    """
    known = list(dict.fromkeys(record.key.task for record in records))
    order: list[str] = []
    for name in names_of(tasks):
        members = known if name == ALL else [name] if name in known else expand_tasks([name])
        found = [task for task in members if task in known]
        if known and not found:
            raise UserError(f"--tasks {name}: no record of that task{suggest(name, set(known))}")
        order += found
    return list(dict.fromkeys(order))


def explain_hidden(records: Iterable[Record], tasks: Names = None, protocol: str | None = None) -> str:
    """Return which option shows the records if ``select`` excludes all of them because of ``UNRANKED``.

    The result is a sentence without a full stop; it is empty in all other cases.
    """
    found = [record.key.protocol_name for record in _of_tasks(list(records), tasks)]
    if not found or protocol is not None or not set(found) <= set(UNRANKED):
        return ""
    protocol, several = found[0], len(found) > 1
    counted = f"{len(found)} records of protocol {protocol} are" if several else f"1 record of protocol {protocol} is"
    return f"{counted} hidden; --protocol {protocol} shows {'them' if several else 'it'}"


def current(records: Sequence[Record]) -> tuple[list[Record], str]:
    """Return the ranked and pretrained records of the newest version of each protocol, and a sentence on all others.

    If there are none, the result contains every record. The sentence is empty if no row is left out.
    """
    earlier = earlier_protocols(records)
    shown: list[Record] = []
    hidden: dict[tuple[str, ...], str] = {}
    for record in records:
        section = "obsolete" if record.key.protocol in earlier else section_of(record)
        if section in ("ranked", *PRETRAINED):
            shown.append(record)
        else:
            hidden[_row_key(record)] = HIDDEN[section]
    if not shown:
        return list(records), ""
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(hidden.values()).most_common())
    return shown, f"Hidden rows: {counts}. Use --all to show them." if hidden else ""


def earlier_protocols(records: Iterable[Record]) -> set[str]:
    """Return the protocols of which the records contain a later version."""
    newest: dict[str, int] = {}
    versions: dict[str, tuple[str, int]] = {}
    for key in (record.key for record in records):
        version = int(key.unsearched_protocol.removeprefix(key.protocol_name).removeprefix("-v") or 1)
        newest[key.protocol_name] = max(version, newest.get(key.protocol_name, 1))
        versions[key.protocol] = key.protocol_name, version
    return {protocol for protocol, (name, version) in versions.items() if version < newest[name]}


def _row_key(record: Record) -> tuple[str, ...]:
    """Return the values that the seeds of a row share."""
    return record.key.task, record.key.protocol, record.machine, record.key.model, record.key.hash


def unique_names(records: Iterable[Record]) -> dict[tuple[str, ...], str]:
    """Return the names of variants that share theirs with another row of the same ranking and hardware.

    The options of the protocol in which they differ are added: ``transformer · activation=relu``, or their hashes if
    they differ in other options. The keys are task, protocol, machine, model and hash.
    """
    groups: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        version = record.data["version"] if record.data else None
        ranking = record.key.task, version, record.key.protocol, missing_data(record), section_of(record)
        groups.setdefault((*ranking, record.machine, record.variant_name), {}).setdefault(record.key.hash, record)
    names: dict[tuple[str, ...], str] = {}
    for same in (list(group.values()) for group in groups.values() if len(group) > 1):
        own = []
        for record in same:
            variant, changed = record.variant, options_of(record.config, record.protocol_modified)
            for option, value in [*changed.items()]:
                if all(options_of(other.config, [option])[option] == value for other in same):
                    del changed[option]
            own.append(variant_name(record.key.model, variant["differences"] | changed, variant["position"]))
        for record, name in zip(same, own, strict=True):
            names[_row_key(record)] = name if own.count(name) == 1 else f"{name} #{record.key.hash}"
    return names


def modifications(record: Record) -> dict[str, str]:
    """Return the options of the protocol that the user changed, with their values as text."""
    return {name: short_value(value) for name, value in options_of(record.config, record.protocol_modified).items()}


def _of_tasks(records: Sequence[Record], tasks: Names) -> list[Record]:
    """Return the records of tasks and groups of tasks, all records without any."""
    wanted = task_order(records, tasks)
    return [record for record in records if record.key.task in wanted] if names_of(tasks) else list(records)


def find_variant(
    records: Iterable[Record], text: str, option: str, paths: Collection[Path] = ()
) -> tuple[str, list[Record]]:
    """Return the full name and the records of the variant that ``text`` describes.

    A name consists of the model and its differences from the model's file, in any order, with or without dots between
    them: ``performer``, ``performer features=64 rope``. Options of a modified protocol (``train.steps``, or
    ``train.steps=500``) and the hash (``#0a1b2c3d``) distinguish variants with the same name. Part of a name suffices
    if it matches one variant only. A variant of a reference board needs ``reference`` only if the user's records
    contain the same variant, finished.

    Args:
        records: The records to search.
        text: The name of a variant.
        option: The name of the option that ``text`` was given for, used in error messages.
        paths: The paths of records, if ``text`` names records. The result is then the variant that all of them belong
            to, with every seed.

    Raises:
        UserError: If no variant or more than one matches, or if the records of ``paths`` are not among ``records``.
    """

    def one_of(names: Collection[str]) -> str:
        if len(names) > 1:
            raise UserError(f"{option}={text}: matches {len(names)} variants; choose one: {'; '.join(sorted(names))}")
        return next(iter(names))

    records = list(records)
    if paths:
        named = {f"{full_name(record)} #{record.key.hash}" for record in records if record.path in paths}
        if not named:
            raise UserError(
                f"{option}={text}: the record is not among the compared records; set --tasks and --protocol to those "
                f"of the record (--protocol {UNRANKED[0]} for a {UNRANKED[0]} cell)"
            )
        text = one_of(named)
    # A run that was interrupted or failed does not hide the finished row of a reference board.
    cells = [(record.key.task, record.key.protocol, record.key.model, record.key.hash) for record in records]
    finished = {cell for cell, record in zip(cells, records, strict=True) if record.status == "ok"}
    words = _words(text)
    hashes = {word.removeprefix("#") for word in words if word.startswith("#")}
    wanted = {word for word in words if not word.startswith("#")}
    variants: dict[str, list[Record]] = {}
    for cell, record in zip(cells, records, strict=True):
        if record.status == "ok" or cell not in finished:
            variants.setdefault(full_name(record), []).append(record)
    matching = [name for name in variants if wanted and all(_names(word, _words(name)) for word in wanted)]

    def distance(name: str) -> tuple[bool, ...]:
        own = _words(name)
        other = own - {"reference"}
        return own != wanted, other != wanted, len(own) != len(wanted), len(other) != len(wanted)

    closest = min(map(distance, matching), default=None)
    found = [name for name in matching if distance(name) == closest]
    if not found:
        models = {record.key.model for members in variants.values() for record in members}
        raise UserError(f"{option}={text}: no record of this variant{suggest(next(iter(wanted), ''), models)}")
    name = one_of(found)
    members = [record for record in variants[name] if not hashes or record.key.hash in hashes]
    if not members:
        known = sorted({record.key.hash for record in variants[name]})
        raise UserError(f"{option}={text}: no record with this hash; choose #{', #'.join(known)}")
    return name + "".join(f" #{hash}" for hash in sorted(hashes)), members


def full_name(record: Record) -> str:
    """Return the variant's name with the modified protocol options, and ``reference`` if it is from a board."""
    changed = (f"{option}={value}" for option, value in modifications(record).items())
    return " · ".join([record.variant_name, *changed, *(["reference"] if record.reference else [])])


def _names(word: str, words: Collection[str]) -> bool:
    """Return whether a word is among those of a name; options may lack their value, or their first parts."""
    return any(
        each == word or each.startswith(f"{word}=") or ("=" in word and each.endswith(f".{word}")) for each in words
    )


def _words(text: str) -> set[str]:
    return {word for word in re.split(r"[\s·,]+", text) if word}
