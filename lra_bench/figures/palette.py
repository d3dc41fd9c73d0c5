"""One colour, marker and line per model, the same in every figure: families share a hue, members differ in marker."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BLACK = "#000000"
GREY = "#767676"
WHITE = "#FFFFFF"
LEAST_CONTRAST = 2.5
REFERENCE = "transformer"

# Okabe and Ito's colours without the yellow that paper swallows, then darker ones that stay apart from them and from
# each other for readers with deuteranopia or protanopia.
ORANGE, BLUE, GREEN, PINK, AMBER, SKY = COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INDIGO, WINE, FOREST, OLIVE, MAROON, BROWN = "#332288", "#882255", "#117733", "#999933", "#661100", "#8C510A"
SLATE = "#203030"

# The shape, and whether it is filled, told apart at the size of a curve's marker; the filled circle is the reference's.
SHAPES = ("s", "^", "D", "v", "P", "<", "X", ">", "p", "d", "*")
MARKERS = (*((shape, True) for shape in SHAPES), *((shape, False) for shape in SHAPES), ("o", False))
LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (5, 1.2, 1, 1.2)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2, 1, 1.2)))


@dataclass(frozen=True)
class Family:
    """What a family's members share: a hue and a line; ``first`` is the place in ``MARKERS`` of the first member.

    Members keep their place for good; new ones are added at the end. Families of one line take markers of their own, so
    that marker and line alone tell all members apart.
    """

    hue: str
    line: int
    first: int
    members: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    "sparse": Family(
        ORANGE, 0, 0,
        ("local", "longformer", "bigbird", "sparse_fixed", "sparse_strided", "etc", "star", "block_local", "blockwise",
         "bpt", "dilated", "global_tokens", "image_local_1d", "image_local_2d", "random"),
    ),
    "full": Family(
        SLATE, 0, 15,
        ("transformer_modern", "gqa", "mqa", "score_additive", "score_bilinear", "score_dot", "score_reduced",
         "differential"),
    ),
    "linear": Family(BLUE, 1, 1, ("performer", "linear", "cosformer", "rfa", "rfa_gated", "performer_relu")),
    "prior": Family(
        PINK, 1, 7,
        ("synthesizer_dense", "synthesizer_random", "realformer", "average_attention", "camtl", "gaussian_transformer",
         "hardcoded_gaussian", "lazyformer", "lazyformer_maps", "local_gaussian", "predictive",
         "synthesizer_factorised_dense", "synthesizer_factorised_random", "synthesizer_random_fixed",
         "forgetting"),
    ),
    "heads": Family(
        WINE, 2, 4,
        ("talking_heads", "adaptive_span", "multiscale", "collaborative", "adaptive_span_dynamic", "capsule_dynamic",
         "capsule_em", "disagreement", "fixed_head_size", "pattern_guided"),
    ),
    "state_space": Family(
        INDIGO, 2, 14, ("s5", "s4d", "mamba2", "mamba", "s4", "dss", "mega", "mega_chunk", "b2s6")
    ),
    "low_rank": Family(GREEN, 4, 2, ("linformer", "nystrom", "csalr", "lowrank_band")),
    "compressed": Family(
        SKY, 4, 6,
        ("luna", "clustered", "clustered_improved", "informer", "isab", "memory_compressed", "poolingformer",
         "h_transformer_1d"),
    ),
    "routed": Family(AMBER, 4, 14, ("reformer", "routing", "sinkhorn", "sac", "sinkhorn_bilinear", "sortcut")),
    "stacks": Family(BROWN, 4, 20),
    "attention_free": Family(FOREST, 3, 8, ("fnet", "gmlp", "mlp_mixer", "amlp")),
    "convolution": Family(
        OLIVE, 3, 12, ("short_convolution", "light_conv", "dynamic_conv", "sgconv", "long_conv", "hyena")
    ),
    "recurrent": Family(
        MAROON, 3, 18,
        ("min_gru", "min_lstm", "retnet", "gla", "delta_net", "gated_delta_net", "lru", "mlstm", "lstm", "gru",
         "rwkv7", "seq2seq", "seq2seq_attention"),
    ),
}  # fmt: skip
PLACES = {model: (family, place) for family, found in FAMILIES.items() for place, model in enumerate(found.members)}


@dataclass(frozen=True)
class Look:
    """Colour, marker, its filling, and line of one variant."""

    colour: str
    marker: str
    filled: bool
    line: Any

    def points(self) -> dict[str, Any]:
        """Colour and marker as matplotlib's keyword arguments."""
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": face, "markeredgecolor": self.colour}

    def options(self) -> dict[str, Any]:
        """The whole look as matplotlib's keyword arguments."""
        return {**self.points(), "linestyle": self.line}


def looks(variants: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str], Look]:
    """The look by (model, label) of each (model, family, label): by model alone, the line telling its variants apart.

    The shortest label of a model has the line that the model has everywhere.
    """
    found: dict[tuple[str, str], Look] = {}
    counts: dict[str, int] = {}
    for model, family, label in sorted(set(variants), key=lambda variant: (variant[0], len(variant[2]), variant[2])):
        number = counts.get(model, 0)
        counts[model] = number + 1
        found[model, label] = look(model, family, number)
    return found


def look(model: str, family: str, variant: int = 0) -> Look:
    """The look of a model's variant by its number; that of a model without a place of its own follows from its name.

    Where a model has more variants than there are lines, the filling of the marker tells the further ones apart.
    """
    further = variant >= len(LINES)
    if model == REFERENCE:
        return Look(BLACK, "o", not further, _line(0, variant))
    if family == "control":
        return Look(GREY, "x", True, _line(3, variant))
    digest = zlib.crc32(model.encode())
    family, place = PLACES.get(model, (family, digest % len(MARKERS)))
    # A family of the user's own has a hue all the same.
    known = FAMILIES.get(family) or list(FAMILIES.values())[zlib.crc32(family.encode()) % len(FAMILIES)]
    shape, filled = MARKERS[(known.first + place) % len(MARKERS)]
    return Look(_shade(known.hue, place % 3), shape, filled != further, _line(known.line, variant))


def numbered(keys: Iterable[Any]) -> dict[Any, Look]:
    """Looks of what is no model, by number: the first as the reference's, each other with a colour, marker and line."""
    first, *others = dict.fromkeys(keys)
    found = {first: Look(BLACK, "o", True, LINES[0])}
    for number, key in enumerate(others):
        found[key] = Look(COLOURS[number % len(COLOURS)], *MARKERS[number % len(MARKERS)], _line(1, number))
    return found


def family_order(family: str) -> int:
    """Where a family stands in legends: the reference's first, controls last."""
    order = ["full", *(name for name in FAMILIES if name != "full")]
    return order.index(family) if family in order else len(order) + (family == "control")


def _line(line: int, variant: int) -> Any:
    return LINES[(line + variant) % len(LINES)]


def _shade(hue: str, step: int) -> str:
    """The hue itself, a darker one, a lighter one; where that would be lost on paper, one between the first two."""
    if step == 2 and contrast(lighter := _mixed(hue, 255, 0.25), WHITE) >= LEAST_CONTRAST:
        return lighter
    return _mixed(hue, 0, (0.0, 0.3, 0.15)[step])


def _mixed(colour: str, towards: int, share: float) -> str:
    return "#" + "".join(f"{round(channel + share * (towards - channel)):02X}" for channel in _channels(colour))


def _channels(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it: what is left of them in grey."""
    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, 0 to 1, as WCAG 2.2 defines it."""
    shares = [channel / 255 for channel in _channels(colour)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
