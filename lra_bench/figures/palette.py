"""Colour, marker and line style of each model, the same in every figure.

Models of a family share a hue and a line style, and differ in their markers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

BLACK = "#000000"
GREY = "#767676"
WHITE = "#FFFFFF"
AT_FLOOR = "#AFAFAF"
"""Colour of scores that do not exceed the floor."""
BELOW_FLOOR = "#F1F1F1"
"""Colour of the region of scores that do not exceed the floor."""
LEAST_CONTRAST = 2.5
REFERENCE = "transformer"

# The palette of Okabe and Ito without yellow, which is too light on paper, and darker colours that are distinguishable
# from it and from each other with deuteranopia and protanopia.
ORANGE, BLUE, GREEN, PINK, AMBER, SKY = COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INDIGO, WINE, FOREST, OLIVE, MAROON, BROWN = "#332288", "#882255", "#117733", "#999933", "#661100", "#8C510A"
SLATE, PURPLE, RED = "#203030", "#7A3DB8", "#D00050"

# Shape and filling of markers that are distinguishable at the size used in curves. The reference is a filled circle.
SHAPES = ("s", "^", "D", "v", "P", "<", "X", ">", "p", "d", "*")
MARKERS = (*((shape, True) for shape in SHAPES), *((shape, False) for shape in SHAPES), ("o", False))
OWN_MARKERS = (((4, 1, 0), True), ((4, 1, 0), False), ((8, 1, 0), True), ((8, 1, 0), False))
"""Stars with four and eight points, for models that are not listed in ``FAMILIES``."""
LINES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (5, 1.2, 1, 1.2)),
    (0, (1, 1)),
    (0, (4, 1.2, 1, 1.2, 1, 1.2)),
    (0, (8, 2)),
)


@dataclass(frozen=True)
class Family:
    """The hue and line style of a family; ``first`` is the index in ``MARKERS`` of the first member.

    Members, separated by spaces, must keep their position; new members are added at the end. Families with the same
    line style use different markers, so that marker and line style alone identify every model. ``more`` are further
    members of a family whose line style has no markers left; they have the last line style, and markers from the index
    ``first_of_more`` on.
    """

    hue: str
    line: int
    first: int
    members: str
    more: str = ""
    first_of_more: int = 0


FAMILIES: dict[str, Family] = {
    "sparse": Family(
        ORANGE, 0, 0,
        "local longformer bigbird sparse_fixed sparse_strided etc star block_local blockwise bpt dilated "
        "global_tokens image_local_1d image_local_2d random",
        "axial", 11,
    ),
    "full": Family(
        SLATE, 0, 15,
        "transformer_modern gqa mqa score_additive score_bilinear score_dot score_reduced differential",
        "relu_attention sigmoid_attention entmax15 encoder_decoder", 12,
    ),
    "linear": Family(BLUE, 1, 1, "performer linear cosformer rfa rfa_gated performer_relu"),
    "prior": Family(
        PINK, 1, 7,
        "synthesizer_dense synthesizer_random realformer average_attention camtl gaussian_transformer "
        "hardcoded_gaussian lazyformer lazyformer_maps local_gaussian predictive synthesizer_factorised_dense "
        "synthesizer_factorised_random synthesizer_random_fixed forgetting",
    ),
    "heads": Family(
        WINE, 2, 4,
        "talking_heads adaptive_span multiscale collaborative adaptive_span_dynamic capsule_dynamic capsule_em "
        "disagreement fixed_head_size pattern_guided",
    ),
    "state_space": Family(
        INDIGO, 2, 14,
        "s5 s4d mamba2 mamba s4 dss mega mega_chunk b2s6 mamba_negative mamba2_negative log_linear_mamba2",
    ),
    "low_rank": Family(GREEN, 4, 2, "linformer nystrom csalr lowrank_band"),
    "compressed": Family(
        SKY, 4, 6,
        "luna clustered clustered_improved informer isab memory_compressed poolingformer h_transformer_1d",
    ),
    "routed": Family(AMBER, 4, 14, "reformer routing sinkhorn sac sinkhorn_bilinear sortcut native_sparse"),
    "depth": Family(BROWN, 5, 20, "universal depth_adaptive calm"),
    "attention_free": Family(FOREST, 3, 8, "fnet gmlp mlp_mixer amlp"),
    "convolution": Family(OLIVE, 3, 12, "short_convolution light_conv dynamic_conv sgconv long_conv hyena"),
    "recurrent": Family(
        MAROON, 3, 18,
        "min_gru min_lstm retnet gla delta_net gated_delta_net lru mlstm lstm gru rwkv7 seq2seq seq2seq_attention",
        "slstm delta_net_negative gated_delta_net_negative min_gru_negative delta_product gated_delta_product",
    ),
    "memory": Family(PURPLE, 5, 6, "transformer_xl compressive memorizing knn_lm spalm"),
}  # fmt: skip
PLACES = {
    model: (family, place)
    for family, found in FAMILIES.items()
    for place, model in enumerate([*found.members.split(), *found.more.split()])
}


@dataclass(frozen=True)
class Look:
    """Colour, marker, filling of the marker, and line style of one variant."""

    colour: str
    marker: Any
    filled: bool
    line: Any

    def points(self) -> dict[str, Any]:
        """Return colour and marker as keyword arguments of matplotlib."""
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": face, "markeredgecolor": self.colour}

    def faint(self) -> Look:
        """Return the look of the same model for a score at the floor."""
        return replace(self, colour=AT_FLOOR)

    def options(self) -> dict[str, Any]:
        """Return colour, marker and line style as keyword arguments of matplotlib."""
        return {**self.points(), "linestyle": self.line}


def looks(variants: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str], Look]:
    """Return the look by (model, label) of each (model, family, label).

    Variants of a model share its colour and marker and differ in line style. The shortest label of a model has the
    default line style of the model.
    """
    found: dict[tuple[str, str], Look] = {}
    counts: dict[str, int] = {}
    for model, family, label in sorted(set(variants), key=lambda variant: (variant[0], len(variant[2]), variant[2])):
        number = counts.get(model, 0)
        counts[model] = number + 1
        found[model, label] = look(model, family, number)
    return found


def look(model: str, family: str, variant: int = 0) -> Look:
    """Return the look of the variant with a given number of a model.

    A model that is not listed in ``FAMILIES``, such as one of the user's, has a shade of ``RED``, one of
    ``OWN_MARKERS``, and a line style by a hash of its name. If a model has more variants than there are line styles,
    the further variants differ in the filling of the marker.
    """
    further = variant >= len(LINES)
    if model == REFERENCE:
        return Look(BLACK, "o", not further, _line(0, variant))
    if family == "control":
        return Look(GREY, "x", True, _line(3, variant))
    if model not in PLACES:
        line, place = divmod(zlib.crc32(model.encode()), len(OWN_MARKERS))
        marker, filled = OWN_MARKERS[place]
        return Look(_shade(RED, line % 3), marker, filled != further, _line(line // 3, variant))
    family, place = PLACES[model]
    known = FAMILIES[family]
    first, line = known.first, known.line
    if model in known.more.split():
        first, line = known.first_of_more - len(known.members.split()), len(LINES) - 1
    shape, filled = MARKERS[(first + place) % len(MARKERS)]
    return Look(_shade(known.hue, place % 3), shape, filled != further, _line(line, variant))


def numbered(keys: Iterable[Any]) -> dict[Any, Look]:
    """Return looks for keys that are not models, by number; the first key has the look of the reference."""
    first, *others = dict.fromkeys(keys)
    found = {first: Look(BLACK, "o", True, LINES[0])}
    for number, key in enumerate(others):
        found[key] = Look(COLOURS[number % len(COLOURS)], *MARKERS[number % len(MARKERS)], _line(1, number))
    return found


def family_order(family: str) -> int:
    """Return the position of a family in legends: the reference's family first, controls last."""
    order = ["full", *(name for name in FAMILIES if name != "full")]
    return order.index(family) if family in order else len(order) + (family == "control")


def _line(line: int, variant: int) -> Any:
    return LINES[(line + variant) % len(LINES)]


def _shade(hue: str, step: int) -> str:
    """Return a shade of a hue by step: the hue, a darker one, a lighter one.

    If the lighter shade has too little contrast on white, a shade between the first two is returned instead.
    """
    if step == 2 and contrast(lighter := mixed(hue, 255, 0.25), WHITE) >= LEAST_CONTRAST:
        return lighter
    return mixed(hue, 0, (0.0, 0.3, 0.15)[step])


def mixed(colour: str, towards: int, share: float) -> str:
    """Return a colour mixed with a share of a grey with the channel ``towards``, 255 for white."""
    return "#" + "".join(f"{round(channel + share * (towards - channel)):02X}" for channel in _channels(colour))


def _channels(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as defined in WCAG 2.2; it depends on luminance only."""
    dark, light = sorted(map(luminance, (first, second)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, 0 to 1, as defined in WCAG 2.2."""
    shares = [channel / 255 for channel in _channels(colour)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
