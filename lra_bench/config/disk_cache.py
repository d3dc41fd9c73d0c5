"""Store composed grids in the cache, under a hash of all files that composition reads."""

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
from .sources import targets

PACKAGES = ("lra_bench", "lra_bench.conf", "lra_bench.models", "lra_bench.tasks")
LIBRARIES = ("lra-bench", "hydra-core", "omegaconf")
MOST_FILES = 20_000
"""Maximum number of files in a folder; grids with a larger folder on the search path are not cached."""

KEPT = 32
"""Maximum number of cached grids; the oldest are removed."""

RESOLVER = re.compile(r"\$\{[^}]*:")
"""Pattern of a resolver such as ``${oc.env:HOME}``, whose value does not depend on the hashed files alone."""


def cache_path(cells: Sequence[Sequence[str]], config_dir: Path | None) -> Path | None:
    """Return the cache path of the composed ``cells``, or None if they do not depend on the hashed files alone."""
    digest = _digest(config_dir)
    if digest is None or any(RESOLVER.search(text) for cell in cells for text in cell):
        return None
    key = hashlib.sha256(json.dumps([digest, str(config_dir), list(map(list, cells))]).encode()).hexdigest()[:32]
    return Cache().root / "plans" / f"{key}.json"


def read(cache_file: Path) -> list[Composed] | None:
    """Return the cached cells, or None if there are none or the file is invalid."""
    try:
        return [_composed(raw) for raw in json.loads(cache_file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError, UserError):
        return None


def write(cache_file: Path, composed: Sequence[Composed], config_dir: Path | None) -> None:
    """Write composed cells to the cache, if they depend on the hashed files alone and the cache can be written."""
    if not writes_cache():
        return
    if not all(_is_digested(target, config_dir) for each in composed for target in targets(as_dict(each.config))):
        return
    text = json.dumps([asdict(each) for each in composed], separators=(",", ":"))
    if [_composed(raw) for raw in json.loads(text)] != list(composed):
        return  # a value cannot be represented in JSON
    if cache_path([each.overrides for each in composed], config_dir) != cache_file:
        return  # a file changed in the meantime
    with suppress(OSError):
        with replacing(cache_file) as temporary:
            temporary.write_text(text, encoding="utf-8")
        for old in sorted(cache_file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)


def _digest(config_dir: Path | None) -> str | None:
    """Return a hash of all configuration files, of the code that composes and checks them, and of library versions.

    Returns None if a folder has more than ``MOST_FILES`` files or a file uses a resolver.
    """
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


def _is_digested(target: str, config_dir: Path | None) -> bool:
    """Return whether the source of a class is among the hashed files."""
    top = target.partition(".")[0]
    return top == "lra_bench" or (
        config_dir is not None and any((config_dir / name).exists() for name in (top, f"{top}.py"))
    )


def _composed(raw: dict[str, Any]) -> Composed:
    converted = {
        "config": from_dict(raw["config"]),
        "overrides": tuple(raw["overrides"]),
        "modified": tuple(raw["modified"]),
    }
    return Composed(**{**raw, **converted})
