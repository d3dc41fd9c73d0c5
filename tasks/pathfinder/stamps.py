"""Everything of a Pathfinder picture that is the same for all: paddles drawn once, and tables of where they may go.

A paddle's direction has a number: 0 ... 359 are the whole degrees from -180 in which a contour may start, 360 + c the
direction from a pivot to its candidate c, one of the pixels on a circle around it.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .parameters import Parameters

SEED_DIRECTIONS = 360
COLLISION = 459  # of two masks: 1.8 * 255, a tie that in float32, in which the original adds them, lies above it
NO_WEIGHT = 1e-30
LANCZOS_WINDOW = 3
LINE, MASK, SPREAD, SOLID = range(4)
HEAD, BACK, ONWARD, AROUND = range(4)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Tables(NamedTuple):
    """What compiled code needs to draw with one set of parameters and one margin.

    D directions, C candidates, R the resolution; y always before x. ``stamps`` (3, D, side, side) are paddles from
    their start in the centre: LINE, as seen; MASK, the room they take; SPREAD, that room widened by the margin.
    ``boxes`` (4, D, 4) bound, by first row, end row, first column, end column, where these are above 0, and SOLID where
    masks can collide. ``kernels`` (K, 2) are the offsets of a starting paddle's pixels, those of direction d from
    ``kernel_starts[d]`` to ``kernel_starts[d + 1]``; ``usable`` (360,) tells whether the border rule lets a contour
    start in a direction; ``starts`` (360, R, W) are, one bit each, the cells where the first one may, and
    ``start_counts`` (360,) their numbers. ``moves`` (4, D, 2) are steps in a direction: from a paddle's start to its
    HEAD, from there BACK to the pivot, from one pivot ONWARD to the next, and from the first start to a second one
    AROUND it. ``candidates`` (C, 2) are offsets from the pivot, ``followers`` (D, C) those that can follow a direction,
    ``follower_counts`` (D,) of them, and ``weights`` (D, C) how likely each is. ``openness`` (256,) is 1 minus a mask's
    value. ``levels`` (3, 256) are the brightness of contours, distractors and markers by what was drawn with 8 bits.
    ``markers`` (P, P, side, side) are the discs by place along each axis: near the low edge, inside, near the high one.
    """

    resolution: int
    border: int
    margin: int
    contour_length: int
    distractor_length: int
    distractors: int
    stamps: Bytes
    boxes: Integers
    kernels: Integers
    kernel_starts: Integers
    usable: NDArray[np.bool_]
    starts: NDArray[np.uint64]
    start_counts: Integers
    moves: Floats
    candidates: Integers
    followers: Integers
    follower_counts: Integers
    weights: Floats
    openness: Floats
    levels: Floats
    markers: Bytes


@cache
def tables(parameters: Parameters, margin: int, border_rule: bool = True) -> Tables:
    """Draw and compute everything, a few hundred small pictures (under a second)."""
    p = parameters
    degrees = np.arange(-180, 180) * np.pi / 180
    reversed_degrees = np.where(degrees + np.pi < np.pi, degrees + np.pi, degrees - np.pi)
    candidates = ring(p.length + margin)
    outward = np.arctan2(candidates[:, 0], candidates[:, 1])
    directions = np.concatenate([degrees, outward])
    # A candidate is the new head: its paddle is drawn back towards the pivot.
    drawn = [paddle(p, margin, angle) for angle in (*degrees, *np.where(outward < 0, outward + np.pi, outward - np.pi))]
    lines, masks = (np.stack(pictures) for pictures in zip(*drawn, strict=True))
    spreads = np.stack([_widened(mask, margin) for mask in masks])
    around = ((0, 0), (margin, margin), (margin, margin))
    stamps = np.stack([np.pad(lines, around), np.pad(masks, around), spreads])
    kernels = [kernel(mask, p.length + margin) for mask in masks[:SEED_DIRECTIONS]]
    usable = np.array([not border_rule or _sees_from_everywhere(offsets) for offsets in kernels])
    starts, start_counts = _first_starts(p, kernels)
    moves = np.zeros((4, len(directions), 2))
    moves[HEAD] = _vectors(p.length, directions)
    moves[BACK, :SEED_DIRECTIONS] = _vectors(p.length + margin, reversed_degrees)
    moves[ONWARD] = _vectors(p.length + 2 * margin, directions)
    moves[AROUND, :SEED_DIRECTIONS] = _vectors(p.seed_distance, np.arange(360) * np.pi / 180)
    followers, follower_counts, weights = _followers(directions, outward, p.continuity)
    return Tables(
        resolution=p.resolution,
        border=p.border,
        margin=margin,
        contour_length=p.contour_length,
        distractor_length=p.distractor_length,
        distractors=p.distractors,
        stamps=stamps,
        boxes=np.stack([_boxes(shown) for shown in (*(stamps > 0), stamps[MASK] >= COLLISION - 255)]),
        kernels=np.concatenate(kernels),
        kernel_starts=np.cumsum([0, *(len(offsets) for offsets in kernels)]),
        usable=usable,
        starts=starts,
        start_counts=np.where(usable, start_counts, 0),
        moves=moves,
        candidates=candidates,
        followers=followers,
        follower_counts=follower_counts,
        weights=weights,
        openness=1 - (np.arange(256) / 255).astype(np.float32).astype(np.float64),
        levels=np.stack([_levels(p.contour_contrast), _levels(p.distractor_contrast), np.arange(256) / 255]),
        markers=markers(p),
    )


def paddle(p: Parameters, margin: int, angle: float) -> tuple[Bytes, Bytes]:
    """A paddle that starts in the centre and the room that it takes, both (side, side).

    Only the head is rounded, and upwards, which is why no two opposite directions look alike.
    """
    from PIL import Image, ImageDraw
    from scipy.ndimage import binary_dilation

    centre = reach(p, margin) * p.oversampling
    head_y = ceil(centre + p.length * p.oversampling * np.sin(angle))
    head_x = ceil(centre + p.length * p.oversampling * np.cos(angle))
    picture = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    ends = [(centre, centre), (head_x, head_y)]
    ImageDraw.Draw(picture).line(ends, fill=255, width=round(p.thickness * p.oversampling))
    line = np.asarray(picture)
    room = binary_dilation(line > 0, disc(margin * p.oversampling)).astype(np.uint8) * np.uint8(255)
    side = 2 * reach(p, margin) + 1
    return _shrunk(line, side), _shrunk(room, side)


def reach(p: Parameters, margin: int) -> int:
    """How far a paddle's picture extends from its start."""
    return p.length + ceil(p.thickness) + margin


def disc(radius: float) -> NDArray[np.bool_]:
    """Which pixels have their centre within ``radius`` of the middle one."""
    y, x = np.ogrid[-int(radius) : int(radius) + 1, -int(radius) : int(radius) + 1]
    return np.asarray(y**2 + x**2 <= radius**2)


def kernel(mask: Bytes, half: int) -> Integers:
    """Offsets (K, 2) of the pixels that a starting paddle wholly takes, within ``half`` of its start.

    They are one pixel too far down and right, as the original has them.
    """
    offsets = np.argwhere(mask == 255) - mask.shape[0] // 2 + 1
    return offsets[(abs(offsets) <= half).all(axis=1)]


def ring(radius: int) -> Integers:
    """Offsets (C, 2) of the pixels that a circle runs through, one point per pixel of its length, in reading order."""
    angles = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    points = np.stack([radius * np.sin(angles), radius * np.cos(angles)], axis=1)
    return np.unique(np.floor(points).astype(np.int64), axis=0)


def markers(p: Parameters) -> Bytes:
    """Discs (P, P, side, side) by where their centre lies along each axis.

    Scaling down treats the pixels near an edge differently, so that each of the first and last places has its own disc;
    the middle index stands for all places in between.
    """
    scale = p.oversampling
    half = marker_reach(p)
    near = marker_border(p)
    size = 2 * near + 1
    y, x = np.ogrid[: size * scale, : size * scale]
    drawn = np.zeros((size, size, 2 * half + 1, 2 * half + 1), dtype=np.uint8)
    for row in range(size):
        for column in range(size):
            inside = (y - row * scale) ** 2 + (x - column * scale) ** 2 <= (p.marker_radius * scale) ** 2
            whole = np.pad(_shrunk(inside.astype(np.uint8) * np.uint8(255), size), half)
            drawn[row, column] = whole[row : row + 2 * half + 1, column : column + 2 * half + 1]
    return drawn


def marker_reach(p: Parameters) -> int:
    """How far a marker's picture extends from its centre: the disc, and what the Lanczos window smears."""
    return ceil(p.marker_radius) + LANCZOS_WINDOW + 1


def marker_border(p: Parameters) -> int:
    """At so many places from the edge a marker looks like one in the middle."""
    return marker_reach(p) + LANCZOS_WINDOW


def _shrunk(picture: Bytes, side: int) -> Bytes:
    """Scaled down to (side, side) by Pillow's 8-bit Lanczos filter."""
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


def _first_starts(p: Parameters, kernels: list[Integers]) -> tuple[NDArray[np.uint64], Integers]:
    """For each direction the free cells of a picture that holds nothing but a wide border, and their number."""
    from .cells import find_free, mark_taken

    mask = np.full((p.resolution, p.resolution), 255, dtype=np.uint8)
    inner = slice(2 * p.seed_distance, p.resolution - 2 * p.seed_distance)
    mask[inner, inner] = 0
    bits = np.empty((p.resolution, -(-p.resolution // 64)), dtype=np.uint64)
    mark_taken(mask, bits)
    starts = np.empty((len(kernels), *bits.shape), dtype=np.uint64)
    counts = [find_free(bits, offsets, free) for offsets, free in zip(kernels, starts, strict=True)]
    return starts, np.array(counts)


def _widened(mask: Bytes, margin: int) -> Bytes:
    """The highest value within ``margin`` of each pixel, (side + 2 * margin, ...)."""
    from scipy.ndimage import grey_dilation

    padded = np.pad(mask, margin)
    return np.asarray(grey_dilation(padded, footprint=disc(margin), mode="constant", cval=0))


def _sees_from_everywhere(offsets: Integers) -> bool:
    """Whether a kernel of these offsets meets the picture from each of its pixels: its corners decide.

    The original dilates with a border of -DBL_MAX. A pixel from which the kernel sees nothing but border keeps that
    value, and a check for negative numbers then takes the whole picture for full.
    """
    return all(
        ((offsets * (vertical, horizontal)) >= 0).all(axis=1).any() for vertical in (-1, 1) for horizontal in (-1, 1)
    )


def _vectors(distance: float, angles: Floats) -> Floats:
    return np.stack([distance * np.sin(angles), distance * np.cos(angles)], axis=1)


def _followers(directions: Floats, outward: Floats, continuity: float) -> tuple[Integers, Integers, Floats]:
    """For each direction its possible candidates, in order, how many they are, and their weights.

    At a right angle and beyond, the squared cosine is that of the float nearest to pi / 2, 4e-33 and not 0. Such a
    candidate is none: added to any other weight, it is lost.
    """
    turn = abs(outward - directions[:, None])
    turn = np.minimum(turn, 2 * np.pi - turn)
    weights = np.cos(np.minimum(turn * continuity, np.pi / 2)) ** 2
    possible = weights > NO_WEIGHT
    order = np.argsort(~possible, axis=1, kind="stable")
    return order, possible.sum(axis=1), np.take_along_axis(weights, order, axis=1)


def _levels(contrast: float) -> Floats:
    """Brightness of the 256 values of a drawn line: computed in float64, kept in float32, as the original does."""
    return (np.arange(256) / 255 * contrast).astype(np.float32).astype(np.float64)


def _boxes(marked: NDArray[np.bool_]) -> Integers:
    """First row, end row, first column, end column of what is true in each picture; zeros where nothing is."""
    boxes = np.zeros((len(marked), 4), dtype=np.int64)
    for box, picture in zip(boxes, marked, strict=True):
        if picture.any():
            rows, columns = np.flatnonzero(picture.any(axis=1)), np.flatnonzero(picture.any(axis=0))
            box[:] = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    return boxes
