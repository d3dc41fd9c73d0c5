"""Checks of configurations: of names and values, of combinations before planning, and of this machine.

Names of options are checked when overrides are read, types and rules (``declaration.Rule``) when a section is built.
``before_planning`` checks combinations, ``check_machine`` what depends on the machine that runs a cell. What depends on
the task or the mixer is checked by the constructors of models.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError, install_command
from lra_bench.options.declaration import Rule, shown
from lra_bench.runtime import hardware
from lra_bench.runtime.hardware import HardwareOptions

from .groups import GROUPS, listing, option_files, option_paths
from .hints import OTHER_NAMES, check_bare_words, suggest_options
from .loading import quoted
from .schema import Backbone, CellConfig, Measure, added_keys, measure_options
from .search import LR, OPTUNA, SCALES, is_range, searches
from .task_groups import ALL, group_names

OPEN_GROUPS = ("task", "model", "position", "launcher")
"""Groups whose options are the constructor arguments of a class, so that their names are not in the schema."""

MODEL_PARTS = frozenset({"label", "mixer", "network", "controller", "retrieval", "source"})
"""Names of the options of the section ``model``. Options of a mixer belong to ``model.mixer``."""

ESCAPED = r"\${"
"""Escape sequence of OmegaConf for ``${``, which would begin an interpolation."""

PATHS = ("task.source",)
"""Options whose values are paths, with any characters; they are no lists of values."""

RESERVED = ("search.name", "search.protocol_lr", "pretrain.name")
"""Options that only lra-bench sets."""

SCALARS = (bool, int, float, str)
SHOWN_CHARACTERS = 60


def _schema_keys() -> frozenset[str]:
    """Return the dotted names of all sections and options of ``CellConfig``."""
    return _keys_with(measure_options())


@cache
def _keys_with(measure: Callable[[], Measure]) -> frozenset[str]:
    def walk(node: Any, before: str) -> Iterator[str]:
        for entry in fields(node):
            name, value = f"{before}{entry.name}", getattr(node, entry.name)
            yield name
            if is_dataclass(value):
                yield from walk(value, f"{name}.")

    return frozenset(walk(CellConfig(measure=measure()), ""))


def option_names() -> frozenset[str]:
    """Return the names of all groups and of all options that do not belong to a single class of ``OPEN_GROUPS``."""
    return _schema_keys() | set(GROUPS)


def check_override(override: str, config_dir: Path | None) -> str:
    """Check an override of the user and return it in the form that Hydra requires.

    Raises ``UserError`` with a suggestion if the option or the option file does not exist.
    """
    check_bare_words([override], config_dir)
    key, _, value = override.partition("=")
    option = key.lstrip("+~")
    if override.startswith("~"):
        raise UserError(f"{override}: options cannot be removed; set {option}=…, or {option}=null if it has no value")
    section, _, inner = option.partition(".")
    if option in GROUPS and key != option:
        raise UserError(f"{override}: write it without {key.removesuffix(option)}")
    if option in GROUPS:
        known = option_files(option, config_dir)
        for name in value.split(","):
            if name and name not in known:
                suggested = {*known, *(group_names(config_dir) if option == "task" else ())}
                other = OTHER_NAMES.get(name) or re.sub(r"-v\d+$", "", name)
                hint = suggest(name, suggested, listing(option))
                if other in (*known, ALL) and other != name:
                    hint = f"; write {option}={other}"
                raise UserError(f"{option}={name}: there is no such {option}{hint}")
        return override
    if section in OPEN_GROUPS and inner:
        if option in PATHS and value != "null" and not (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
            override = f"{key}={quoted(value.replace('${', ESCAPED))}"
        # Hydra rejects options that no file sets, unless they have a prefix such as ++ (add or replace).
        return override if key != option else f"++{override}"
    if section != "backbone" or not inner:
        check_name(option, value)
    return override


def check_name(option: str, value: str, backbone: Collection[str] = ()) -> None:
    """Raise ``UserError`` with a suggestion if no section has the ``option``.

    Options of the section ``backbone`` are checked when its class, which has the options ``backbone``, is known.
    """
    own = {f"backbone.{name}" for name in backbone} - _schema_keys()
    if option in _schema_keys() or ".".join(option.split(".")[:2]) in own:
        return
    known = option_names() | own
    if suggestion := suggest_options(option, value, known):
        raise UserError(f"{option}: there is no such option; did you mean {suggestion}?")
    raise UserError(f"{option}: there is no such option{suggested(option, known)}")


def is_section(option: str) -> bool:
    """Return whether an option is a section of the configuration, or the node of the class of a model."""
    return option in ("model.mixer", "model.network", *OPEN_GROUPS) or any(
        key.startswith(f"{option}.") for key in _schema_keys()
    )


def suggested(name: str, known: Iterable[str]) -> str:
    """Return the suggestion for an unknown option, from the options of its section if there are any."""
    siblings = {key for key in known if key.rpartition(".")[0] == name.rpartition(".")[0]}
    return suggest(name, siblings or set(known))


def check_value(hint: Any, value: Any, option: str, rule: Rule | None = None) -> None:
    """Raise ``UserError`` if the value of an option does not have the type ``hint`` or violates its rule."""
    if not fits(value, hint):
        expected = hint.__name__ if hint in SCALARS else str(hint).replace("typing.", "")
        raise UserError(f"{option}={str(value)[:SHOWN_CHARACTERS]!r}: must be {expected}")
    if rule and (message := rule.violated(option, value)):
        raise UserError(message)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type; integers are also numbers with a fraction."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(fits(value, each) for each in arguments)
    if origin is list:
        return isinstance(value, list) and all(fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, Mapping)
    return hint is Any or type(value) is hint or (hint is float and type(value) is int)


def check_lists(config: CellConfig) -> None:
    """Raise ``UserError`` if a list has a wrong number of entries, or any value is NaN."""
    _refuse_nan(asdict(config), "")
    train, search = config.train, config.search
    if len(train.betas) != 2:
        raise UserError(f"train.betas={shown(train.betas)}: must be two numbers, such as [0.9,0.999]")
    if train.beta1_cycle is not None and len(train.beta1_cycle) != 2:
        cycle = shown(train.beta1_cycle)
        raise UserError(f"train.beta1_cycle={cycle}: must be two numbers, such as [0.95,0.85], or null")
    if train.length_warmup is not None:
        where = f"train.length_warmup={shown(train.length_warmup)}"
        if any(len(pair) != 2 or min(pair) < 1 for pair in train.length_warmup):
            raise UserError(f"{where}: must be pairs of a length and a number of steps, such as [[128,800],[512,200]]")
        if (steps := sum(steps for _, steps in train.length_warmup)) >= train.steps:
            raise UserError(f"{where}: has {steps:,} of {train.steps:,} steps (train.steps); leave some for the others")
    if search.name == LR and len(set(search.rates)) < max(2, len(search.rates)):
        raise UserError(f"search.rates={shown(search.rates)}: must be two or more different rates")
    if search.name == OPTUNA:
        _check_space(config)
    if searches(config) and len(set(search.seeds)) < max(1, len(search.seeds)):
        raise UserError(f"search.seeds={shown(search.seeds)}: must be one or more different seeds")


SEARCHED = ("train", "backbone", "model", "position")
"""Sections whose options ``search=optuna`` can choose."""


def _check_space(config: CellConfig) -> None:
    """Raise ``UserError`` if ``search.space`` is empty, or has a wrong option or wrong values."""
    if not config.search.space:
        raise UserError(
            "search=optuna: needs the options to search; set them, as in "
            "'search.space={train.lr:[1e-4,1e-2,log],backbone.depth:[2,4]}'"
        )
    for option, values in config.search.space.items():
        section, _, inner = option.partition(".")
        if section not in SEARCHED or not inner:
            raise UserError(f"search.space: {option} is not searched; name options of {', '.join(SEARCHED)}")
        if section not in OPEN_GROUPS:
            check_name(option, "", asdict(config.backbone))
        where = f"search.space: {option}:{shown(values)}"
        if not isinstance(values, list) or any(type(each) not in SCALARS for each in values):
            raise UserError(f"{where}: must be a list of values, such as [2,4,8], or a range, such as [1e-4,1e-2,log]")
        if is_range(values):
            low, high, scale = values
            if {type(low), type(high)} - {int, float}:
                raise UserError(f"{where}: must be a range of two numbers, such as [1e-4,1e-2,log]")
            if not low < high or (scale == SCALES[0] and low <= 0):
                raise UserError(f"{where}: the first number must be below the second, and above 0 with log")
        elif len({(type(each), each) for each in values}) < max(2, len(values)):
            raise UserError(f"{where}: must be two or more different values")


def _refuse_nan(value: Any, option: str) -> None:
    """Raise ``UserError`` if a part of a configuration contains NaN."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            _refuse_nan(each, f"{option}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for each in value:
            _refuse_nan(each, option)
    elif isinstance(value, float) and math.isnan(value):
        raise UserError(f"{option}=nan: must be a number")


def check_model_file(node: Mapping[str, Any], name: str, config_dir: Path | None) -> None:
    """Raise ``UserError`` if the section ``node`` of the model ``name`` lacks a part or has an unknown option."""
    file = option_paths("model", name, config_dir)[0]
    if isinstance(node.get("model"), Mapping):
        raise UserError(f"model={name}: {file} must begin with the line `# @package _global_`")
    if not node.get("mixer") and not node.get("network"):
        raise UserError(f"model={name}: {file} defines neither model.mixer nor model.network")
    if not node.get("label"):
        raise UserError(f"model={name}: {file} has no label; write `label: …`, the name in tables, under `model:`")
    for part in node.keys() - MODEL_PARTS:
        similar = (f"backbone.{part}", f"train.{part}")
        meant = next((option for option in similar if option in option_names()), f"model.mixer.{part}")
        raise UserError(f"model.{part}: there is no such option; did you mean {meant}?")


def before_planning(config: CellConfig, overrides: Sequence[str], modified: Sequence[str], missing: str) -> None:
    """Raise ``UserError`` if options of a composed cell contradict each other.

    Args:
        config: The configuration.
        overrides: The overrides of the user.
        modified: The options of the protocol that the user changed.
        missing: Why the protocol has no values for the cell, empty if it has.
    """
    given = {text.partition("=")[0].lstrip("+"): text.lstrip("+") for text in overrides}
    for option in RESERVED:
        if option in given:
            choices = "pretrain=masked or pretrain=none" if option == "pretrain.name" else "search=lr or search=none"
            raise UserError(f"{given[option]}: is set by lra-bench; write {choices}")
    for option in config.search.space if config.search.name == OPTUNA else ():
        if option in given:
            raise UserError(f"{given[option]}: search=optuna chooses {option}; leave it out, or out of search.space")
    if config.search.name == LR and ("train.lr" in given or "train.lr" in modified):
        text = given.get("train.lr", f"train.lr={config.train.lr:g}")
        raise UserError(f"{text}: search=lr chooses the learning rate; leave out train.lr, or set search=none")
    if searches(config) and config.seed in (seeds := config.search.seeds):
        raise UserError(f"seed={config.seed}: is a seed of the search (search.seeds={shown(seeds)}); choose another")
    if missing:
        raise UserError(missing)


def refuses_network(config: CellConfig) -> str | None:
    """Return why a whole network does not support the options of the layers around a mixer, None if it does."""
    if not config.model.get("network"):
        return None
    defaults = replace(config, backbone=Backbone())
    given = [
        f"{key}={value}" for key in added_keys() if (value := attrgetter(key)(config)) != attrgetter(key)(defaults)
    ]
    if config.model.get("controller"):
        given.insert(0, "model.controller")
    if not given:
        return None
    name = str(config.model["network"].get("_target_")).rpartition(".")[2]
    return f"{given[0]}: {name} is a whole network without layers around a mixer; leave it out or choose another model"


def check_machine(config: CellConfig) -> None:
    """Raise ``UserError`` if this machine cannot run a cell: missing hardware, or batches that cannot be divided."""
    check_hardware(config.hardware)
    options, batch_size = config.hardware, config.train.batch_size
    processes, most = hardware.processes_of(options), options.micro_batch
    if config.backbone.norm == "batch" and most and most * processes < batch_size:
        advice = "hardware.strategy=ddp" if options.strategy == "none" else "a larger hardware.processes"
        raise UserError(
            f"hardware.micro_batch={most}: backbone.norm=batch normalises over all examples of a batch "
            f"(train.batch_size={batch_size}), so they must be computed in one pass; leave hardware.micro_batch out or "
            f"set {advice}"
        )
    if batch_size < processes:
        raise UserError(
            f"train.batch_size={batch_size}: is smaller than hardware.processes={processes}; lower hardware.processes"
        )
    if most == 1 and batch_size % processes and options.strategy == "fsdp":
        raise UserError(
            "hardware.micro_batch=1: hardware.strategy=fsdp needs the same number of examples on every process, and "
            f"train.batch_size={batch_size} is not a multiple of hardware.processes={processes}; "
            "set hardware.micro_batch=2"
        )


def check_hardware(options: HardwareOptions) -> None:
    """Raise ``UserError`` if this machine does not have or support what ``config.hardware`` requires."""
    choice, requested = options.device, options.processes
    if choice not in ("auto", "cpu", "cuda"):
        unsupported = f"torch's device {choice} is not supported; " if choice in ("mps", "xpu") else ""
        raise UserError(f"hardware.device={choice}: {unsupported}choose auto, cpu or cuda (NVIDIA or AMD GPUs)")
    if choice == "cuda" and not hardware.has_cuda():
        why = hardware.unused_accelerator() or "no CUDA device is available here"
        raise UserError(f"hardware.device=cuda: {why}; choose hardware=cpu or hardware=auto")
    cpu = hardware.on_cpu(options)
    if cpu and options.precision == "tf32":
        raise UserError("hardware.precision=tf32: needs a CUDA device; choose fp32, bf16 or fp16 on a CPU")
    if options.strategy == "none" and requested not in (None, 1):
        raise UserError(f"hardware.processes={requested}: needs hardware.strategy=ddp or hardware.strategy=fsdp")
    if options.strategy == "fsdp" and cpu and not hardware.shards_on_cpu():
        version = metadata.version("torch")
        raise UserError(f"hardware.strategy=fsdp: torch {version} cannot shard on a CPU; set hardware.strategy=ddp")
    if options.strategy != "none" and requested and not cpu and requested > (gpus := hardware.gpu_count()):
        raise UserError(
            f"hardware.processes={requested}: each process needs a GPU, {gpus} are available; lower hardware.processes"
        )
    if not options.accelerated:
        return
    if cpu:
        raise UserError("hardware.accelerated=true: needs a CUDA device; leave it out")
    if hardware.precision_of(options) not in ("bf16", "fp16"):
        raise UserError("hardware.accelerated=true: its kernels need 16-bit precision; set hardware.precision=bf16")
    if find_spec("fla") is None:
        raise UserError(
            f"hardware.accelerated=true: needs flash-linear-attention; install it with {install_command('accelerated')}"
        )
