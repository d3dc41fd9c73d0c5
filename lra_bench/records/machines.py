"""Distinguish machines with the same hardware name, and combine seeds that were measured on several machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from .schema import Record

CUT = 1.2
"""Ratio of neighbouring throughputs above which they belong to different machines."""

CEILING: Final = "matmul_flops_per_second"
"""Field of ``environment["hardware"]`` with the throughput of matrix products, the best of five measurements."""


def name_machines(records: Iterable[Record]) -> None:
    """Set the machine of each record of one results folder.

    Records with the same hardware name are of one machine if their throughputs say so: the known values are sorted and
    cut where a neighbour is more than 20 % higher. What lies between two cuts may be one machine. If there are several
    groups, the name of a machine ends in its highest throughput, ``cpu-xeon-6-143-8-vm-2t-330gflops``. A record without
    a throughput belongs to the group of its cell's other seeds, otherwise to the largest group.
    """
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.key.hardware, []).append(record)
    for members in by_name.values():
        groups = ceiling_groups([value for record in members if (value := ceiling(record)) is not None])
        names = {value: f"-{max(group) / 1e9:.0f}gflops" for group in groups for value in group}
        known = {id(record): names[value] for record in members if (value := ceiling(record)) is not None}
        if len(groups) < 2:
            continue
        of_cell = {record.key.folder(): known[id(record)] for record in members if id(record) in known}
        largest = Counter(known.values()).most_common(1)[0][0]
        for record in members:
            record.machine_suffix = known.get(id(record)) or of_cell.get(record.key.folder(), largest)


def machine_at(hardware: str, flops_per_second: float | None, records: Iterable[Record]) -> str:
    """Return the machine among those of named ``records`` that a measurement belongs to, without the name of a board.

    It is the one whose throughput of matrix products, None if unknown, differs by at most 20 %; ``hardware`` if records
    of that name are of one machine; a name of its own if there are several machines and none matches.
    """
    own = [record for record in records if record.key.hardware == hardware]
    suffixes = {record.machine_suffix for record in own}
    if suffixes <= {""}:
        return hardware
    for record in own:
        known = ceiling(record)
        if flops_per_second and known and 1 / CUT <= flops_per_second / known <= CUT:
            return hardware + record.machine_suffix
    return f"{hardware}-{(flops_per_second or 0) / 1e9:.0f}gflops"


def combine_machines(records: Iterable[Record]) -> list[Record]:
    """Return the records, in which seeds of a cell that were measured on different machines have the same ``machine``.

    Tables and figures combine them in one row, named ``2 machines`` for two. The records concerned are copies
    without step benchmark and energy. They keep the costs of a profile if only one of the machines was profiled. Cells
    of which a seed was measured on several machines are unchanged.
    """
    records = list(records)
    cells: dict[tuple[str, ...], list[int]] = {}
    for place, record in enumerate(records):
        cell = record.reference, record.key.task, record.key.model, record.key.protocol, record.key.hash
        cells.setdefault(cell, []).append(place)
    for places in cells.values():
        own = [records[place] for place in places]
        machines = len({record.machine for record in own})
        if machines > 1 and len({record.key.seed for record in own}) == len(own):
            profiled = {record.machine for record in own if record.profiled}
            for place, record in zip(places, own, strict=True):
                costs = record.profiled if len(profiled) == 1 else None
                records[place] = replace(record, machines=machines, speed=[], growth={}, energy=None, profiled=costs)
    return records


def ceiling(record: Record) -> float | None:
    """Return the measured throughput of matrix products in FLOPs per second, None if unknown."""
    return record.environment["hardware"].get(CEILING)


def ceiling_groups(values: Iterable[float]) -> list[list[float]]:
    """Sort positive values and cut them where a neighbour is more than 20 % higher; return the groups."""
    groups: list[list[float]] = []
    for value in sorted(values):
        if groups and value <= CUT * groups[-1][-1]:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups
