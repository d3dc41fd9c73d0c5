"""Data from Python: a table of one's own as a task, and the data of a task for a training loop of one's own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.errors import UserError
from lra_bench.runtime.files import expanded

from .checked import Folder, in_python, names_in, public

if TYPE_CHECKING:
    import datasets
    import torch

    from lra_bench.contracts import Task, TaskSpec


@dataclass(frozen=True)
class TaskData:
    """A task and its data, returned by ``load_task`` and ``task_from``.

    Attributes:
        name: Name of the task.
        options: Options of the task that differ from its configuration file and the protocol.
        protocol: Protocol that defines the sizes of the data.
        config_dir: Folder of additional configuration and classes.
        table: Data set of the user by split; None if the task reads files or generates its data.
    """

    name: str
    options: Mapping[str, Any]
    protocol: str = "quick"
    config_dir: Folder | None = None
    table: datasets.DatasetDict | None = None

    def overrides(self, folder: Path) -> list[str]:
        """Return the task as overrides of the command line; a data set of the user is written below ``folder``."""
        from lra_bench.config.loading import override

        options = {**self.options, **({} if self.table is None else {"path": _written(self.table, folder)})}
        return [f"task={self.name}", *(override(f"task.{option}", value) for option, value in options.items())]

    @cached_property
    def task(self) -> Task:
        """The task, whose data is prepared in the cache. Raises ``UserError`` if an option or the data is wrong."""
        from lra_bench.config.compose import compose
        from lra_bench.config.import_path import importable
        from lra_bench.config.objects import build_task
        from lra_bench.data.cache import Cache

        cache, folder = Cache(), None if self.config_dir is None else Path(self.config_dir)
        overrides = [*self.overrides(cache.root / "raw" / self.name), f"protocol={self.protocol}", "hardware=cpu"]
        with in_python(), importable(folder):
            task = build_task(compose(overrides, folder).config)
            task.prepare(cache)
        return task

    @property
    def spec(self) -> TaskSpec:
        """The properties of the task: kind, classes, vocabulary or channels, training length."""
        return self.task.spec

    def dataset(self, split: str = "train", length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split as a data set of Hugging Face.

        Args:
            split: ``train``, ``validation`` or ``test``.
            length: Length of the longest example in tokens; None for the training length.
            variant: Method by which examples of another length are made; None for the first of ``task.variants``.

        Returns:
            Unpadded examples with the columns ``tokens`` or ``values``, ``target`` and ``length``.

        Raises:
            UserError: If there is no such split, or the length is not possible.
        """
        if split not in ("train", "validation", "test"):
            raise UserError(f"split={split}: there is no such split; choose train, validation or test")
        if length is not None and not isinstance(length, int):
            raise UserError(f"length={length!r}: must be an integer")
        if variant is not None and variant not in (variants := self.task.variants):
            raise UserError(f"variant={variant}: there is no such variant; choose {', '.join(variants) or None}")
        if length is not None and (reason := self.task.supports_length(length, variant)):
            raise UserError(f"length={length}: is not possible ({reason}); choose another")
        return self.task.split(split, length, variant)

    def torch(
        self, split: str = "train", length: int | None = None, variant: str | None = None
    ) -> torch.utils.data.Dataset[dict[str, torch.Tensor]]:
        """Return a split as a map-style data set of torch.

        Its items are mappings of tensors: ``tokens`` (N,) int64, (2, N) for two documents, or ``values`` (N, C) float;
        ``target`` and ``length``. Its method ``collate`` pads items to a ``Batch``:
        ``DataLoader(data, batch_size=32, collate_fn=data.collate)``.

        Args:
            split: As in ``dataset``.
            length: As in ``dataset``.
            variant: As in ``dataset``.

        Returns:
            The data set.

        Raises:
            UserError: As ``dataset``.
        """
        from lra_bench.data.batches import Rows, TorchRows

        return TorchRows(Rows(self.dataset(split, length, variant), self.spec))


@public
def load_task(name: str, *, protocol: str = "quick", config_dir: Folder | None = None, **options: Any) -> TaskData:
    """Return a task with its data, which is generated or downloaded at the first use.

    Args:
        name: Name of the task, as in ``lra-bench list tasks``.
        protocol: Protocol that defines the sizes of the data.
        config_dir: Folder of additional configuration and classes.
        **options: Options of the task, such as ``seed=1``.

    Returns:
        The task.

    Raises:
        UserError: If ``name`` is not the name of a task, or the value of an option has a type that no configuration can
            contain. Wrong options and data are reported when the data is first used.

    Examples:
        >>> parity = lra_bench.load_task("parity", protocol="smoke", length=16)
        >>> sorted(parity.dataset("test").column_names)
        ['length', 'target', 'tokens']
        >>> len(parity.torch("test"))
        64
    """
    from lra_bench.config.groups import option_files
    from lra_bench.config.task_groups import FOLDER, task_group

    folder = None if config_dir is None else Path(config_dir)
    if names_in("task", name)[0] in option_files(FOLDER, folder):
        raise UserError(f"task={name}: is a group of tasks; load one of {', '.join(task_group(name, folder).tasks)}")
    return _checked(TaskData(name, options, protocol, config_dir))


@public
def task_from(dataset: Any, *, protocol: str = "quick", **options: Any) -> TaskData:
    """Return a table of one's own as a task.

    Args:
        dataset: Path of a file or folder; a ``Dataset`` or ``DatasetDict`` of Hugging Face; a ``DataFrame`` of pandas;
            a mapping of split names to these, or of column names to lists.
        protocol: Protocol that defines the sizes of the data.
        **options: Options of ``task=csv``: the names of columns ``text`` (two for pairs), ``label`` and ``values``, and
            others, such as ``max_length``.

    Returns:
        The task.

    Raises:
        UserError: If ``dataset`` is something else. Wrong options and rows are reported when the data is first used.

    Examples:
        >>> rows = {"text": [f"{n} is {word}" for n in range(99) for word in ("good", "bad")], "label": [1, 0] * 99}
        >>> reviews = lra_bench.task_from(rows, max_length=64)
        >>> reviews.spec.classes
        2
    """
    if isinstance(dataset, str | os.PathLike):
        return _checked(TaskData("csv", {"path": str(expanded(dataset, "dataset").absolute()), **options}, protocol))
    import datasets
    import pandas as pd

    def table(value: Any) -> Any:
        if isinstance(value, pd.DataFrame):
            return datasets.Dataset.from_pandas(value, preserve_index=False)
        if isinstance(value, Mapping):
            return datasets.Dataset.from_dict({str(name): list(column) for name, column in value.items()})
        return value

    forms = (datasets.Dataset, pd.DataFrame, Mapping)
    by_split = isinstance(dataset, Mapping) and all(isinstance(each, forms) for each in dataset.values())
    try:
        tables = {str(name): table(each) for name, each in (dataset if by_split else {"all": dataset}).items()}
    except (TypeError, ValueError) as error:  # pyarrow's errors are of these types
        raise UserError(f"task_from: the columns are no table ({str(error).splitlines()[0]}); correct them") from error
    if not tables or not all(isinstance(each, datasets.Dataset) for each in tables.values()):
        raise UserError(
            f"task_from: {type(dataset).__name__} is no table; pass a path, a Dataset or DatasetDict of datasets, a "
            "DataFrame, or a mapping of columns"
        )
    if empty := [name for name, each in tables.items() if not len(each)]:
        raise UserError(f"task_from: the table {empty[0]} has no rows; leave it out or add some")
    return _checked(TaskData("csv", options, protocol, table=datasets.DatasetDict(tables)))


def _checked(task: TaskData) -> TaskData:
    """Return the task. Raises ``UserError`` if no configuration can contain the value of an option."""
    from lra_bench.config.loading import override

    for option, value in task.options.items():
        override(f"task.{option}", value)
    return task


def _written(table: datasets.DatasetDict, folder: Path) -> str:
    """Write a data set below ``folder``, unless it is there, and return the path of its folder."""
    from lra_bench.data.cache import without_bars
    from lra_bench.data.digest import settings_digest

    target = folder.absolute() / settings_digest({name: each._fingerprint for name, each in table.items()}) / "table"
    if not target.is_dir():
        temporary = target.with_name(f"building-{uuid.uuid4().hex[:8]}")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        with without_bars():
            table.save_to_disk(str(temporary))
        temporary.replace(target)
    return str(target)
