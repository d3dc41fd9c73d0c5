"""Checks of the model that overrides name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lra_bench.config.compose import compose
from lra_bench.config.import_path import importable
from lra_bench.config.objects import build_task
from lra_bench.runtime.findings import Finding

from .battery import check_model


def check_overrides(overrides: Sequence[str], config_dir: Path | None) -> list[Finding]:
    """Check the model that overrides name, see ``lra_bench.check``."""
    with importable(config_dir):
        config = compose(overrides, config_dir).config
        return check_model(config, build_task(config).spec)
