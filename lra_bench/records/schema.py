"""The record of a cell, and the meaning of its statuses."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lra_bench.config.hashing import HASH_VERSION
from lra_bench.config.measurements import measurements
from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Measurement
from lra_bench.runtime.redaction import shareable

from .key import CellKey
from .sections import Capability, Code, Config, Data, Environment, Margin, Metric, ProfiledCosts, Variant
from .skill import strongest
from .upgrades import SCHEMA_VERSION
from .values import NOT_STORED, check, json_schema, plain, shown, stored_fields

STATUSES: Mapping[str, str] = {
    "ok": "finished; everything that can be measured was measured",
    "diverged": "the loss or a gradient became infinite or not a number",
    "out_of_memory": "the device or the machine had too little memory",
    "timeout": "the time limit of the cell was reached",
    "incompatible": "the model cannot run this task, with the reason",
    "failed": "an error ended the cell, with its first line and the last lines of its process",
    "interrupted": "stopped from outside; the same command resumes it",
}
"""Meaning of each status of a record."""

FINISHED = ("ok", "diverged", "out_of_memory", "incompatible")
"""Statuses that are results."""

RETRIED = ("failed", "timeout", "out_of_memory")
"""Statuses of cells that are run again on request, because another run may end differently."""


PRETRAIN = "pretrain"
"""Name among the differences of a variant of the objective of its pretraining, which is the end of its name."""

EDITED = "edited"
"""Name among the differences of a variant whose classes of lra-bench were edited."""

MOST_CHARACTERS = 24
"""Largest number of characters of an option's value in the name of a variant; longer values are shortened."""


@dataclass(kw_only=True)
class Record:
    """The record of one cell: all data that tables and figures are made from.

    Sections that were not reached are None or empty. ``sections`` defines their fields, and those of measurements their
    ``Result``.

    Attributes:
        schema_version: Version of the schema.
        hash_version: Version of the rules by which the hash in ``key`` was computed, ``config.hashing.HASH_VERSION``.
        status: One of ``STATUSES``.
        reason: Reason of the status.
        last_lines: Last lines of the output of a failed process.
        attempt: Number of the attempt, from 1 on.
        key: Key of the cell.
        variant: The model and its differences from its configuration file.
        config: The resolved configuration.
        protocol_modified: Options of the protocol that were overridden.
        command: The command line.
        started_at: Start of the attempt, in ISO 8601.
        finished_at: End of the attempt, in ISO 8601.
        wall_seconds: Duration.
        code: Version of the program.
        data: The task's data.
        environment: Machine and software.
        parameters: Numbers of parameters.
        training: Steps, times and throughput of the training run.
        speed: Results of the step benchmark by mode and length.
        growth: Growth exponents of time and memory by mode.
        flops: Floating-point operations.
        energy: Energy per training step.
        state: Bytes of the inference state by length; None if it was not measured.
        memory: Scores by memory length; None unless a language model has a memory whose length can be changed.
        adaptive_depth: Scores at several budgets of depth; None unless the model adapts its depth.
        metrics: Scores by split.
        floors: Floors (scores of rules without a model) on the test split, by name.
        rungs: Scores on the test split of exact procedures that stop early, by name; empty if the task has none.
        margins: Improvement of the test score over each floor, paired by row; empty if the rows are not known.
        slices: Test scores of named subsets of the targets; empty if the task has none.
        minimal_pairs: Scores on pairs of examples that differ in one element and in their answer; None if not measured.
        extrapolation: Scores at other lengths.
        capability: Declared properties of the system.
        search: How the learning rate was chosen; None if it was not searched.
        restriction: Length from which the mechanism restricts what a token can attend to; None if unknown.
        measured: Sections of further measurements, by name, such as those of the user; not stored if there are none.
        artifacts: File names of the tables (curves, predictions).
        path: File from which the record was loaded; not stored.
        reference: Name of the reference board, empty for the user's records; not stored.
        machine_suffix: End of ``machine`` if machines of the same hardware name differ (``name_machines``); not stored.
        machines: Number of machines on which the seeds of the cell were measured if ``combine_machines`` combined them,
            otherwise 1; not stored.
        profiled: Costs in a stored profile, None without one (``attach_costs``); not stored.
    """

    schema_version: int = SCHEMA_VERSION
    hash_version: int = HASH_VERSION
    status: str
    reason: str = ""
    last_lines: list[str] = field(default_factory=list)
    attempt: int = 1
    key: CellKey
    variant: Variant
    config: dict[str, Any]
    protocol_modified: list[str] = field(default_factory=list)
    command: str
    started_at: str
    finished_at: str
    wall_seconds: float | None
    code: Code
    data: Data | None = None
    environment: Environment
    parameters: Any = None
    training: Any = None
    speed: list[Any] = field(default_factory=list)
    growth: dict[str, Any] = field(default_factory=dict)
    flops: Any = None
    energy: Any = None
    state: Any = None
    memory: Any = None
    adaptive_depth: Any = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    floors: dict[str, float | None] = field(default_factory=dict)
    rungs: dict[str, float] = field(default_factory=dict)
    margins: dict[str, Margin] = field(default_factory=dict)
    slices: list[Any] = field(default_factory=list)
    minimal_pairs: Any = None
    extrapolation: Any = None
    capability: Capability | None = None
    search: Any = None
    restriction: Any = None
    measured: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    path: Path | None = field(default=None, compare=False, repr=False, metadata=NOT_STORED)
    reference: str = field(default="", compare=False, repr=False, metadata=NOT_STORED)
    machine_suffix: str = field(default="", compare=False, repr=False, metadata=NOT_STORED)
    machines: int = field(default=1, compare=False, repr=False, metadata=NOT_STORED)
    profiled: ProfiledCosts | None = field(default=None, compare=False, repr=False, metadata=NOT_STORED)

    @property
    def metric(self) -> Literal["accuracy", "bits_per_character"] | None:
        """The name of the metric, or None if it is unknown.

        Without a score, it is ``bits_per_character`` if a floor is above 1, and otherwise unknown.
        """
        for measured in self.metrics.values():
            if "accuracy" in measured:
                return "accuracy"
            if "bits_per_character" in measured:
                return "bits_per_character"
        highest = max((floor for floor in self.floors.values() if floor is not None), default=0.0)
        return "bits_per_character" if highest > 1 else None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is better."""
        return self.metric != "bits_per_character"

    def score(self, split: str = "test") -> float | None:
        """Return the score on ``split``, or None if it was not measured.

        If the best weights were not evaluated again, as in trials, the score on ``validation`` is the one at the lowest
        validation loss during training.
        """
        name = self.metric
        measured = self.metrics.get(split)
        if split == "validation" and measured is None:
            return (self.training or {}).get("validation_score_at_lowest_loss")
        return None if name is None or measured is None else measured.get(name)

    def best_floor(self) -> tuple[str, float] | None:
        """Return name and score of the strongest floor (rule without a model), or None if none was computed."""
        return strongest(self.floors, self.higher_is_better)

    @property
    def machine(self) -> str:
        """The machine's name in tables and figures, ``HARDWARE@BOARD`` for records of a reference board.

        Machines with the same hardware name but another throughput differ in ``machine_suffix``. The user's records and
        those of a board are never of the same machine, even if the hardware has the same name. Records of
        ``combine_machines`` have the number of machines as name, such as ``2 machines``.
        """
        name = self.key.hardware + self.machine_suffix if self.machines == 1 else f"{self.machines} machines"
        return f"{name}@{self.reference}" if self.reference else name

    @property
    def code_facts(self) -> dict[str, Any]:
        """The section ``code`` with the names of stored modules instead of their texts."""
        facts = dict(self.code)
        return facts | {"sources": ", ".join(self.code["sources"])} if "sources" in self.code else facts

    @property
    def variant_name(self) -> str:
        """The model and its differences from its configuration file: ``performer · features=64 · rope``."""
        return variant_name(self.key.model, self.variant["differences"], self.variant["position"])

    def section(self, name: str) -> Any:
        """Return the section of a measurement, None if it was not measured."""
        return getattr(self, name) if name in stored_fields(self) else self.measured.get(name)

    def measured_by(self, measurement: type[Measurement]) -> Any:
        """Return the section of a measurement, or a mapping of its sections; None if it was not measured."""
        return {name: self.section(name) for name in measurement.sections} or self.section(measurement.name)

    def add_section(self, name: str, section: Any) -> None:
        """Set the section of a measurement."""
        if name in stored_fields(self):
            setattr(self, name, section)
        elif section is not None:
            self.measured[name] = section

    def to_dict(self) -> dict[str, Any]:
        """Return the record as finite JSON values, with secrets and local paths redacted, without ``NOT_STORED``."""
        names = [name for name in stored_fields(self) if name != "measured" or self.measured]
        cleaned: dict[str, Any] = shareable({name: plain(getattr(self, name)) for name in names})
        return cleaned

    def fault(self) -> str:
        """Return why the record could not be read after it was written; empty if it can be read."""
        try:
            Record.from_dict(self.to_dict())
        except UserError as error:
            return str(error)
        return ""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], path: Path | None = None) -> Record:
        """Build the record from ``raw``, which must be of the current schema version (see ``upgrade``).

        Raises ``UserError`` that names the first invalid field.
        """
        values = {"measured": {}, **raw}
        check(values, cls)
        check(values["config"], Config, "config")
        for name, kind in _measured_types():
            if (section := {**values["measured"], **values}.get(name)) is not None:
                check(section, kind, name)
        if values["status"] not in STATUSES:
            raise UserError(f"record: status {shown(values['status'])} is unknown (known: {', '.join(STATUSES)})")
        values["key"] = CellKey(**{part.name: values["key"][part.name] for part in dataclasses.fields(CellKey)})
        for name, file in values["artifacts"].items():
            own = values["key"].file(name).name
            if not re.fullmatch(
                rf"{re.escape(own)}(-[0-9a-f]{{8}})?\.parquet|{re.escape(name)}-[0-9a-f]{{8}}\.parquet#\d{{1,6}}", file
            ):
                raise UserError(f"record: artifacts.{name} should name a table of this record, is {shown(file)}")
        if unknown := sorted(values.keys() - set(stored_fields(cls))):
            raise UserError(f"record: {unknown[0]} is not a field of a version {SCHEMA_VERSION} record")
        return cls(**values, path=path)


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of records of the current version, with the sections of all measurements."""
    schema = json_schema(Record)
    fields = schema["properties"]
    fields["measured"]["properties"] = {}
    for name, kind in _measured_types():
        section = json_schema(kind)
        if not fields.get(name):  # Any: it may be missing
            section = {"anyOf": [section, {"type": "null"}]}
        (fields if name in fields else fields["measured"]["properties"])[name] = section
    fields["config"] = json_schema(Config)
    fields["schema_version"] = {"const": SCHEMA_VERSION}
    fields["status"] = {"enum": list(STATUSES)}
    attributes = inspect.cleandoc(Record.__doc__ or "").partition("Attributes:\n")[2]
    for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE):
        if name in fields:
            fields[name] = {**fields[name], "description": " ".join(text.split())}
    schema["required"].remove("measured")
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Record of lra-bench"}
    return {**draft, **schema, "additionalProperties": False}


def _measured_types() -> Iterator[tuple[str, Any]]:
    """Yield name and type of each section of a record that contains a measurement."""
    for measurement in measurements().values():
        yield from (measurement.sections or {measurement.name: measurement.Result}).items()


def variant_name(model: str, differences: Mapping[str, Any], position: str | None) -> str:
    """Return the name of a variant: ``performer · features=64 · rope``, ``performer · edited``, ``s4 · masked``.

    Args:
        model: Name of the model.
        differences: Options that differ from the model's configuration file, with their values. Options are shortened
            to their last part, or those of the backbone to the parts after ``backbone.``, if that is unique.
        position: Name of the position encoding, if the user chose it.

    Returns:
        The name.
    """
    # Options of a section inside the backbone keep its name, as in hybrid.every.
    short = [
        option.split(".", 1)[1] if option.startswith("backbone.") else option.rsplit(".", 1)[-1]
        for option in differences
    ]
    parts = [
        EDITED if option == EDITED else f"{last if short.count(last) == 1 else option}={short_value(value)}"
        for (option, value), last in zip(differences.items(), short, strict=True)
        if option != PRETRAIN
    ]
    return " · ".join([model, *parts, *filter(None, [position, differences.get(PRETRAIN)])])


def short_value(value: Any) -> str:
    """Format the value of an option, shortened if it has more than ``MOST_CHARACTERS``: ``[100 values]``."""
    text = _format(value)
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"[{len(value)} values]" if isinstance(value, list | tuple) else f"{text[: MOST_CHARACTERS - 1]}…"


def _format(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_format(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_format(entry) for entry in value) + "]"
    return str(value)
