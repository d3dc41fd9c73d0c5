"""Hash of everything that determines the results of a cell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any

from .effective import effective
from .optimization import TRAINING_REVISION
from .pretraining import pretrains
from .schema import ADDED, Backbone, CellConfig
from .search import LR, at_first_values, hashed
from .serialization import as_dict
from .sources import source_digests

HASH_VERSION = 2
"""Version of the rules of ``config_hash``, stored in records; cells of different versions have different keys."""

SECTIONS = ("task", "model", "position", "backbone", "train")

# The section ``position`` is covered, so the name by which it was chosen is left out.
NOT_HASHED = (
    *(("task", "source"), ("task", "path"), ("task", "allow_partial")),
    *(("model", "label"), ("model", "source")),
    ("backbone", "position"),
)

BY_ROLE = {"experts": ("count",), "embedding": ("rank", "cutoffs")}
"""Options of the backbone whose classes have a list ``not_decayed``, with those that select the classes."""

OFF: dict[tuple[str, str], Any] = {
    ("backbone", "controller"): None,
    **{("backbone", name): value for name, value in effective(asdict(Backbone()), "").items() if name in ADDED},
    ("position", "clamp"): None,
    ("task", "test_first"): False,
    ("train", "length_warmup"): None,
}
"""Values with which options that were added after ``HASH_VERSION`` change nothing; with them an option is left out, so
that cells of earlier records keep their keys."""

OFF_IN_CLASSES: dict[str, Any] = {"normalizer": "softmax"}
"""The same for arguments of classes, wherever the configuration names a class with such an argument."""


def earlier_revisions(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield ``node`` (see ``covered``) with each earlier revision of one of its classes, after a description of it.

    The description contains the name of the class and both revisions: ``LRU 1 → 2``.
    """
    for key, value in node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ():
        changes = _earlier(node, value) if key == "_revisions_" else earlier_revisions(value)
        for description, changed in changes:
            copied = copy(node)
            copied[key] = changed
            yield description, copied


def _earlier(node: Mapping[str, Any], revisions: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield the revisions of a class and its bases with an earlier one of them; revision 1 is left out."""
    name = str(node["_target_"]).rpartition(".")[2]
    for index, present in enumerate(revisions):
        for earlier in range(present - 1, 0, -1):
            kept = [earlier] if earlier > 1 else []
            yield f"{name} {earlier} → {present}", [*revisions[:index], *kept, *revisions[index + 1 :]]


def config_hash(config: CellConfig, fingerprint: str) -> str:
    """Return eight hexadecimal digits of a hash of everything that determines the results of a cell.

    The hash covers all options of the sections task, model, position, backbone and train, with the defaults of the
    schema and of the constructors of the classes that they name; the revisions of these classes and of the training
    code; the source code of classes outside lra-bench and of edited classes of lra-bench, without comments; and
    ``fingerprint``, the fingerprint of the task's data. If weight decay applies to a part of the parameters, it also
    covers the names of parameters to which these classes do not apply it. Seed, labels, paths, tracker, launcher and
    hardware are not covered. With ``search=lr`` the hash covers grid, seeds and rule of the search instead of the
    learning rate, with ``search=optuna`` space, seeds, number of trials and rule instead of the searched options, and
    with pretraining its options. Raises ``UserError`` if a class cannot be imported.
    """
    return digest(covered(config), fingerprint)


def digest(covered: Mapping[str, Any], fingerprint: str) -> str:
    """Return the hash of a cell from what it covers, see ``covered``, and the fingerprint of the task's data."""
    parts = json.loads(json.dumps([HASH_VERSION, TRAINING_REVISION, covered, fingerprint]))  # keys as in records
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def covered(config: CellConfig) -> dict[str, Any]:
    """Return what the hash of a cell covers of its configuration, see ``config_hash``."""
    search = hashed(config)
    config = at_first_values(config)
    values = as_dict(config)
    decays = config.train.weight_decay > 0 and not config.train.decay_all
    found: dict[str, Any] = {section: _without_off(effective(values[section], section, decays)) for section in SECTIONS}
    for section, option in NOT_HASHED:
        found[section].pop(option, None)
    for (section, option), value in OFF.items():
        if option in found[section] and found[section][option] == value:
            del found[section][option]
    if sources := source_digests(found):
        found["sources"] = sources
    for option, selecting in BY_ROLE.items() if decays else ():
        if any(found["backbone"].get(option, {}).get(each) is not None for each in selecting):
            found["backbone"][option]["_by_role_"] = True
    if pretrains(config):
        found["pretrain"] = effective(values["pretrain"], "pretrain", decays)
    if config.search.name == LR:
        found["train"].pop("lr")  # the search covers the rate of the protocol, and the chosen one is a result
    if search is not None:
        found["search"] = effective(search, "search")
    return found


def _without_off(node: Any) -> Any:
    """Return a part of a configuration without the arguments of classes that have the value in ``OFF_IN_CLASSES``."""
    if isinstance(node, list):
        return [_without_off(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    off = OFF_IN_CLASSES if "_target_" in node else {}
    return {name: _without_off(value) for name, value in node.items() if name not in off or value != off[name]}
