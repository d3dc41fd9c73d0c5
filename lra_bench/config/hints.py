"""Suggestions for options that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lra_bench.contracts import UserError

from .groups import GROUPS, option_files
from .task_groups import group_names

WORDS = {
    "train.lr": "learningrate rate",
    "train.batch_size": "batch bs",
    "train.steps": "epochs epoch maxsteps numsteps iterations",
    "train.warmup_steps": "warmup",
    "train.weight_decay": "wd decay",
    "train.clip": "gradclip gradientclip gradientclipping maxgradnorm clipnorm",
    "train.stop_at": "earlystop earlystopping stopearly patience",
    "train.optimizer": "optim optimiser",
    "train.schedule": "scheduler lrschedule lrscheduler",
    "backbone.depth": "layers nlayers numlayers nlayer",
    "backbone.width": "dmodel hidden hiddensize hiddendim dim embeddim modeldim",
    "backbone.heads": "nheads numheads nhead attentionheads",
    "backbone.ff_width": "dff ffn ffdim ffndim mlpdim intermediatesize",
    "backbone.pooling": "pool",
    "backbone.causal": "direction bidirectional",
    "backbone.short_convolution": "canon canonlayers shortconv conv",
    "backbone.gate": "gating residualgate gtrxl",
    "hardware.device": "gpu cuda accelerator",
    "hardware.precision": "dtype amp bf16 fp16 fp32 tf32 mixedprecision",
    "hardware.threads": "nthreads numthreads",
    "hardware.timeout_seconds": "timeout timelimit",
    "hardware.memory_limit_gigabytes": "memory memorylimit",
    "task": "dataset data benchmark",
    "model": "network architecture arch mixer system",
    "position": "pos posenc posemb positional positionalencoding positionencoding positionembedding",
    "protocol": "track budget",
    "tracker": "logger wandb",
    "seed": "randomseed",
    "measure.extrapolation_ratios": "ratios",
}
"""Options, each with its names in other libraries, separated by spaces."""

OTHER_NAMES = {"gpu": "cuda", "all": "ALL"}
"""Common other names of options of a group."""

SYNONYMS = {word: option for option, words in WORDS.items() for word in words.split()}


def check_bare_words(overrides: Sequence[str], config_dir: Path | None) -> None:
    """Raise ``UserError`` with a suggestion if an argument is a single word instead of ``key=value``."""
    words = [text for text in overrides if "=" not in text and not text.startswith("~")]
    if not words:
        return
    options = {name: group for group in reversed(GROUPS) for name in option_files(group, config_dir)}
    options = dict.fromkeys(group_names(config_dir), "task") | options
    suggestions = [_choice(word, options) for word in words]
    if all(suggestions):
        raise UserError(f"{' '.join(words)}: write {' '.join(map(str, suggestions))}")
    word = words[suggestions.index(None)]
    near = difflib.get_close_matches(word, options, n=1)
    hint = f"did you mean {options[near[0]]}={near[0]}?" if near else "write key=value, for example model=performer"
    raise UserError(f"{word}: is not an override; {hint}")


def _choice(word: str, options: Mapping[str, str]) -> str | None:
    """Rewrite ``performer,local`` as ``model=performer,local``; return None if no single group has all the names."""
    groups = {options.get(name) for name in word.split(",")}
    return f"{group}={word}" if len(groups) == 1 and (group := groups.pop()) else None


def suggest_options(key: str, value: str, known: Iterable[str]) -> str:
    """Return known options similar to an unknown one: ``train.lr=3e-4``, several joined by "or", or an empty string."""
    same = [option for option in known if _plain(option) == _plain(key)]
    last = _plain(key.rpartition(".")[2])
    same = same or sorted(option for option in known if "." in option and _plain(option.rpartition(".")[2]) == last)
    same = [option for option in same if not option.startswith("pretrain.")] or same  # those of training are set more
    if len(same) == 1 and value:
        return f"{same[0]}={value}"
    if not same and (found := SYNONYMS.get(last) or SYNONYMS.get(last.removesuffix("s"))):
        return found
    if not same and last.endswith("s") and last[:-1] in known:
        return f"{last[:-1]}={value}" if value else last[:-1]
    if not same and "." not in key:
        lasts = {option.rpartition(".")[2]: option for option in sorted(known)}
        for names in ([option for option in known if "." not in option], lasts):
            same = same or [lasts[name] for name in difflib.get_close_matches(key, names, n=1, cutoff=0.75)]
        if same and "." not in same[0] and value:
            return f"{same[0]}={value}"
    return " or ".join(same)


def override_for_flag(flag: str, arguments: Sequence[str], known: Iterable[str]) -> str:
    """Return the override to use instead of an unknown ``flag`` among a command's arguments, or an empty string."""
    key, value = flag.lstrip("-"), ""
    for place, text in enumerate(arguments):
        if text.partition("=")[0] == flag:
            value = text.partition("=")[2] or next(iter(arguments[place + 1 :]), "")
    value = "" if value.startswith("-") or "=" in value else value
    known = list(known)
    return f"{key}={value}" if key in known and value else suggest_options(key, value, known)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
