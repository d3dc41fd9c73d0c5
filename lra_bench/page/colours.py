"""Colours of the page: those of the figures, lightened for the dark theme."""

from __future__ import annotations

from collections.abc import Mapping

from lra_bench.figures.palette import WHITE, contrast, look, mixed

DARK_GROUND = "#15181c"
READABLE = 4.5  # minimum contrast ratio of text in WCAG 2.2


def model_classes(families: Mapping[str, str]) -> dict[str, str]:
    """Return the CSS class of each model's colour, from a mapping of models to families."""
    return {model: f"m{number}" for number, model in enumerate(sorted(families))}


def rules(families: Mapping[str, str]) -> str:
    """Return the CSS rules of the classes of models, from a mapping of models to families."""
    colours = {name: look(model, families[model]).colour for model, name in model_classes(families).items()}
    return "".join(f".{name}{{--own:light-dark({colour},{lightened(colour)})}}\n" for name, colour in colours.items())


def lightened(colour: str, ground: str = DARK_GROUND) -> str:
    """Return ``colour`` mixed with white until it is readable on the dark ``ground``.

    The required contrast increases with the contrast of ``colour`` on white, so that darker colours become lighter.
    """
    wanted = max(READABLE, (READABLE + contrast(colour, WHITE)) / 2)
    lighter = (mixed(colour, 255, share / 100) for share in range(0, 101, 5))
    return next((each for each in lighter if contrast(each, ground) >= wanted), WHITE)
