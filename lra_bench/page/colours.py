"""Colours of the page: those of the figures, lightened for the dark theme."""

from __future__ import annotations

from collections.abc import Mapping

from lra_bench.figures.palette import look

DARK_GROUND = "#15181c"
READABLE = 4.5
"""Minimum contrast ratio of text in WCAG 2.2."""


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
    wanted = max(READABLE, (READABLE + contrast(colour, "#FFFFFF")) / 2)
    for share in range(0, 101, 5):
        mixed = "#" + "".join(f"{round(each + share / 100 * (255 - each)):02X}" for each in _channels(colour))
        if contrast(mixed, ground) >= wanted:
            return mixed
    return "#FFFFFF"


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as defined in WCAG 2.2."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = (each / 255 for each in _channels(colour))
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
