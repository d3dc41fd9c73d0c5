"""Composed grids kept in the cache, under a digest of everything that composing reads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.runtime.files import replacing, writes_cache

from .compose import Composed
from .groups import extension_sources
from .serialization import as_dict, from_dict

PACKAGES = ("lra_bench", "lra_bench.conf", "lra_bench.models", "lra_bench.tasks")
LIBRARIES = ("lra-bench", "hydra-core", "omegaconf")
MOST_FILES = 20_000
"""A folder of the user's that holds more is not read for the sake of a digest."""
KEPT = 32
"""Grids that are kept; the oldest go."""
RESOLVER = re.compile(r"\$\{[^}]*:")
"""``${oc.env:HOME}``: what it stands for is not in any file."""


def place_of(cells: Sequence[Sequence[str]], config_dir: Path | None) -> Path | None:
    """Where the composed ``cells`` are kept; None where something beside files decides them."""
    digest = _digest(config_dir)
    if digest is None or any(RESOLVER.search(text) for cell in cells for text in cell):
        return None
    key = hashlib.sha256(json.dumps([digest, str(config_dir), list(map(list, cells))]).encode()).hexdigest()[:32]
    return Cache().root / "plans" / f"{key}.json"


def recall(place: Path) -> list[Composed] | None:
    """The composed cells that were kept, None where there are none."""
    try:
        return [_composed(raw) for raw in json.loads(place.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError, UserError):
        return None


def keep(place: Path, composed: Sequence[Composed], config_dir: Path | None) -> None:
    """Keep composed cells for the next time, where the files of the digest alone decide them; if it can be written."""
    if not writes_cache():
        return
    if not all(_is_digested(target, config_dir) for each in composed for target in _targets(as_dict(each.config))):
        return
    text = json.dumps([asdict(each) for each in composed], separators=(",", ":"))
    if [_composed(raw) for raw in json.loads(text)] != list(composed):
        return  # JSON has no words for something in it
    if place_of([each.overrides for each in composed], config_dir) != place:
        return  # a file changed meanwhile
    with suppress(OSError):
        with replacing(place) as aside:
            aside.write_text(text, encoding="utf-8")
        for old in sorted(place.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)


def _digest(config_dir: Path | None) -> str | None:
    """A digest of all configuration files, of the code that composes and checks them, and of its libraries."""
    found = hashlib.sha256(json.dumps([[name, metadata.version(name)] for name in LIBRARIES]).encode())
    for root in _roots(config_dir):
        files = list(islice(root.rglob("*"), MOST_FILES + 1))
        if len(files) > MOST_FILES:
            return None
        for path in sorted(file for file in files if file.suffix in (".yaml", ".py")):
            content = path.read_bytes()
            if path.suffix == ".yaml" and RESOLVER.search(content.decode(errors="replace")):
                return None
            found.update(f"{path}\0{len(content)}\0".encode())
            found.update(content)
    return found.hexdigest()


def _roots(config_dir: Path | None) -> Iterator[Path]:
    extensions = [source.removeprefix("pkg://") for source in extension_sources(None)]
    for name in (*PACKAGES, *extensions):
        found = find_spec(name)
        yield from (Path(place) for place in (found.submodule_search_locations or () if found else ()))
    if config_dir is not None:
        yield config_dir.resolve()


def _targets(node: Any) -> Iterator[str]:
    """Every ``_target_`` in a part of a configuration."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _is_digested(target: str, config_dir: Path | None) -> bool:
    """Whether the source of a class is among the files of the digest."""
    top = target.partition(".")[0]
    return top == "lra_bench" or (
        config_dir is not None and any((config_dir / name).exists() for name in (top, f"{top}.py"))
    )


def _composed(raw: dict[str, Any]) -> Composed:
    own = {"config": from_dict(raw["config"]), "overrides": tuple(raw["overrides"]), "modified": tuple(raw["modified"])}
    return Composed(**{**raw, **own})
