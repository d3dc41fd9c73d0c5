"""Tables shared by all Pathfinder pictures of a set: drawn paddles ("stamps") and the positions that they may take.

A paddle's direction has a number. Numbers 0 ... 359 are directions in which a contour may start, in degrees from -180.
Number 360 + c is the direction from a pivot to its candidate c, a pixel on a circle around the pivot.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .parameters import Parameters

SEED_DIRECTIONS = 360
COLLISION = 459  # smallest colliding sum of two masks, 1.8 * 255; the original's float32 sum of such a pair exceeds 1.8
NO_WEIGHT = 1e-30
LANCZOS_WINDOW = 3
LINE, MASK, SPREAD, SOLID = range(4)
HEAD, BACK, ONWARD, AROUND = range(4)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Tables(NamedTuple):
    """Tables with which compiled code draws pictures of one set of parameters and one margin.

    D is the number of directions, C of candidates, R the resolution; y is always before x.

    Attributes:
        resolution: R.
        border: As in ``Parameters``.
        margin: Distance that a paddle keeps to others.
        contour_length: Number of paddles of a contour.
        distractor_length: Number of paddles of a distractor.
        distractors: Number of attempted distractors.
        stamps: Drawn paddles that start in the centre, (3, D, side, side): LINE, the visible line; MASK, the occupied
            area; SPREAD, the occupied area dilated by the margin.
        boxes: Bounding boxes (first row, end row, first column, end column), (4, D, 4): of the pixels above 0 of each
            stamp; SOLID, of the pixels whose masks can collide.
        kernels: Offsets of the pixels of a starting paddle, (K, 2); those of direction d are from ``kernel_starts[d]``
            to ``kernel_starts[d + 1]``.
        kernel_starts: (361,).
        usable: Whether the border rule allows a contour to start in a direction, (360,).
        starts: Cells in which the first contour may start in each direction, one bit each, (360, R, W).
        start_counts: Number of these cells, (360,).
        moves: Steps in a direction, (4, D, 2): from the start of a paddle to its HEAD, from the head BACK to the pivot,
            from one pivot ONWARD to the next, and from the first start to the second start AROUND it.
        candidates: Offsets of the candidates from the pivot, (C, 2).
        followers: Candidates that may follow a direction, (D, C); the first ``follower_counts`` are valid.
        follower_counts: (D,).
        weights: Weight of each follower, (D, C).
        openness: 1 minus the value of a mask, for 8-bit masks, (256,).
        levels: Brightness of contours, distractors and markers by drawn 8-bit value, (3, 256).
        markers: Discs by position along each axis (near the low edge, inside, near the high edge), (P, P, side, side).
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
    """Compute the tables of one margin, which draws a few hundred small pictures (less than a second).

    ``border_rule`` is as in ``draw_pictures``.
    """
    p = parameters
    degrees = np.arange(-180, 180) * np.pi / 180
    reversed_degrees = np.where(degrees + np.pi < np.pi, degrees + np.pi, degrees - np.pi)
    candidates = ring(p.length + margin)
    outward = np.arctan2(candidates[:, 0], candidates[:, 1])
    directions = np.concatenate([degrees, outward])
    # A candidate is the head of the new paddle, which is drawn from there towards the pivot.
    drawn = [paddle(p, margin, angle) for angle in (*degrees, *np.where(outward < 0, outward + np.pi, outward - np.pi))]
    lines, masks = (np.stack(pictures) for pictures in zip(*drawn, strict=True))
    spreads = np.stack([_dilated(mask, margin) for mask in masks])
    around = ((0, 0), (margin, margin), (margin, margin))
    stamps = np.stack([np.pad(lines, around), np.pad(masks, around), spreads])
    kernels = [kernel(mask, p.length + margin) for mask in masks[:SEED_DIRECTIONS]]
    usable = np.array([not border_rule or _reaches_picture_from_everywhere(offsets) for offsets in kernels])
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
        boxes=np.stack([_boxes(marked) for marked in (*(stamps > 0), stamps[MASK] >= COLLISION - 255)]),
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
    """Draw a paddle that starts in the centre, and the area that it occupies, (side, side) each.

    Only the head is rounded, and always upwards, so that opposite directions look different.
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
    area = binary_dilation(line > 0, disc(margin * p.oversampling)).astype(np.uint8) * np.uint8(255)
    side = 2 * reach(p, margin) + 1
    return _shrunk(line, side), _shrunk(area, side)


def reach(p: Parameters, margin: int) -> int:
    """Return the distance in pixels from the start of a paddle to the edge of its stamp."""
    return p.length + ceil(p.thickness) + margin


def disc(radius: float) -> NDArray[np.bool_]:
    """Return a square mask of the pixels whose centre is within ``radius`` of the central pixel."""
    y, x = np.ogrid[-int(radius) : int(radius) + 1, -int(radius) : int(radius) + 1]
    return np.asarray(y**2 + x**2 <= radius**2)


def kernel(mask: Bytes, half: int) -> Integers:
    """Return offsets (K, 2) of the pixels that a starting paddle occupies completely, within ``half`` of its start.

    The offsets are one pixel too far down and to the right, as in the original.
    """
    offsets = np.argwhere(mask == 255) - mask.shape[0] // 2 + 1
    return offsets[(abs(offsets) <= half).all(axis=1)]


def ring(radius: int) -> Integers:
    """Return offsets (C, 2) of the pixels on a circle, sampled once per pixel of its length, in reading order."""
    angles = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    points = np.stack([radius * np.sin(angles), radius * np.cos(angles)], axis=1)
    return np.unique(np.floor(points).astype(np.int64), axis=0)


def markers(p: Parameters) -> Bytes:
    """Draw discs (P, P, side, side) by the position of their centre along each axis.

    Scaling down changes pixels near an edge, so each of the first and last positions has its own disc; the middle index
    is for all positions in between.
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
            padded = np.pad(_shrunk(inside.astype(np.uint8) * np.uint8(255), size), half)
            drawn[row, column] = padded[row : row + 2 * half + 1, column : column + 2 * half + 1]
    return drawn


def marker_reach(p: Parameters) -> int:
    """Return the distance from the centre of a marker to the edge of its stamp: the disc and the Lanczos window."""
    return ceil(p.marker_radius) + LANCZOS_WINDOW + 1


def marker_border(p: Parameters) -> int:
    """Return the distance from the edge beyond which a marker does not depend on its position."""
    return marker_reach(p) + LANCZOS_WINDOW


def _shrunk(picture: Bytes, side: int) -> Bytes:
    """Scale a picture down to (side, side) with the 8-bit Lanczos filter of Pillow."""
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


def _first_starts(p: Parameters, kernels: list[Integers]) -> tuple[NDArray[np.uint64], Integers]:
    """Return the free cells of a picture with nothing but a wide border, and their number, for each direction."""
    from .cells import find_free, mark_taken

    mask = np.full((p.resolution, p.resolution), 255, dtype=np.uint8)
    inner = slice(2 * p.seed_distance, p.resolution - 2 * p.seed_distance)
    mask[inner, inner] = 0
    bits = np.empty((p.resolution, -(-p.resolution // 64)), dtype=np.uint64)
    mark_taken(mask, bits)
    starts = np.empty((len(kernels), *bits.shape), dtype=np.uint64)
    counts = [find_free(bits, offsets, free) for offsets, free in zip(kernels, starts, strict=True)]
    return starts, np.array(counts)


def _dilated(mask: Bytes, margin: int) -> Bytes:
    """Return the maximum within ``margin`` of each pixel, (side + 2 * margin, ...)."""
    from scipy.ndimage import grey_dilation

    padded = np.pad(mask, margin)
    return np.asarray(grey_dilation(padded, footprint=disc(margin), mode="constant", cval=0))


def _reaches_picture_from_everywhere(offsets: Integers) -> bool:
    """Return whether a kernel with these offsets covers part of the picture from each pixel of it (border rule).

    It suffices to check the corners. The original dilates with a border of -DBL_MAX. A pixel from which the kernel
    covers only border keeps that value, and a check for negative numbers then treats the complete picture as occupied.
    """
    return all(
        ((offsets * (vertical, horizontal)) >= 0).all(axis=1).any() for vertical in (-1, 1) for horizontal in (-1, 1)
    )


def _vectors(distance: float, angles: Floats) -> Floats:
    """Return vectors (y, x) of a length in the given directions, (D, 2)."""
    return np.stack([distance * np.sin(angles), distance * np.cos(angles)], axis=1)


def _followers(directions: Floats, outward: Floats, continuity: float) -> tuple[Integers, Integers, Floats]:
    """Return the possible candidates of each direction, in order, their numbers, and their weights.

    At a right angle and beyond, the squared cosine is that of the float nearest to pi / 2, which is 4e-33 instead of 0.
    Such candidates are excluded: their weight vanishes when added to any other.
    """
    turn = abs(outward - directions[:, None])
    turn = np.minimum(turn, 2 * np.pi - turn)
    weights = np.cos(np.minimum(turn * continuity, np.pi / 2)) ** 2
    possible = weights > NO_WEIGHT
    order = np.argsort(~possible, axis=1, kind="stable")
    return order, possible.sum(axis=1), np.take_along_axis(weights, order, axis=1)


def _levels(contrast: float) -> Floats:
    """Return the brightness of the 256 values of a drawn line, rounded to float32 as in the original."""
    return (np.arange(256) / 255 * contrast).astype(np.float32).astype(np.float64)


def _boxes(marked: NDArray[np.bool_]) -> Integers:
    """Return first row, end row, first column, end column of the true pixels of each picture; zeros if none is."""
    boxes = np.zeros((len(marked), 4), dtype=np.int64)
    for box, picture in zip(boxes, marked, strict=True):
        if picture.any():
            rows, columns = np.flatnonzero(picture.any(axis=1)), np.flatnonzero(picture.any(axis=0))
            box[:] = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    return boxes
