"""Compiled drawing of Pathfinder pictures: two contours, distractors, markers.

A contour is a sequence of dashes ("paddles"). The rules are those of drewlinsley/pathfinder (commit ab9c130), which
generated the data of Long Range Arena, including the apparently unintended ones: positions are rounded up, the second
contour may start on the first, and the last paddle of a contour may be crossed by others; ``stamps`` documents further
ones. Random numbers are generated in the order of the original.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lra_bench.data.compiled import compiled
from lra_bench.data.splitmix import STEP, below, mix, uniform

from .cells import find_free, mark_taken, nth_free
from .stamps import AROUND, BACK, COLLISION, HEAD, LINE, MASK, ONWARD, SOLID, SPREAD

SEED_TRIES = 3
PADDLE_TRIES = 3
DISTRACTOR_TRIES = 5
LEAST_WEIGHT = 1e-4  # smallest total weight of the candidates with which a contour can be continued
LEAST_ROOM = 0.01  # smallest share of unoccupied pixels with which a distractor is attempted

# Metadata of a picture. Origin and terminal are the marked ends; first and second are the starts of the contours.
COLUMNS = (
    *("label", "margin", "attempts", "distractors", "origin_y", "origin_x", "terminal_y", "terminal_x"),
    *("first_y", "first_x", "second_y", "second_x"),
)
LABEL, MARGIN, ATTEMPTS, DISTRACTORS, ORIGIN_Y, ORIGIN_X, TERMINAL_Y, TERMINAL_X = range(8)
FIRST_Y, FIRST_X, SECOND_Y, SECOND_X = range(8, 12)


@compiled
def draw(t: Any, number: int, numbers: int, key: Any, first: int, pictures: Any, about: Any) -> None:
    """Draw those pictures of a part of a stream whose randomly chosen margin is ``number``.

    A picture is a function of its number in the stream and ``key`` only.

    Args:
        t: ``Tables`` of this margin.
        number: Index of the margin.
        numbers: Number of margins.
        key: Key of the stream.
        first: Number of the first picture.
        pictures: Output, (n, R, R) uint8.
        about: Output, (n, 12). Metadata with the columns ``COLUMNS``.
    """
    counter = np.empty(1, dtype=np.uint64)
    for row in range(len(pictures)):
        counter[0] = mix(key + np.uint64(first + row + 1) * STEP)
        label = below(counter, 2)
        if below(counter, numbers) == number:
            about[row, LABEL] = label
            _draw_one(t, counter, label, pictures[row], about[row])


@compiled
def _draw_one(t: Any, counter: Any, label: int, picture: Any, about: Any) -> None:
    """Draw one picture (R, R) and its metadata (12,), in place."""
    size = t.resolution
    mask = np.empty((size, size), dtype=np.uint8)
    spread = np.empty((size, size), dtype=np.uint8)
    contours = np.empty((2, t.contour_length, 3), dtype=np.int64)
    attempts = 1
    while not _draw_contours(t, counter, contours, mask, spread):
        attempts += 1
    lines = np.zeros((2, size, size), dtype=np.uint8)
    for snake in range(2):
        for number in range(t.contour_length):
            _paste(t.stamps, t.boxes, LINE, contours[snake, number], lines[0])
    distractors = _draw_distractors(t, counter, lines[1], mask, spread)
    marked = below(counter, 2)
    other = marked if label == 1 else 1 - marked
    origin, terminal = contours[marked, 0], contours[other, t.contour_length - 1]
    discs = np.zeros((size, size), dtype=np.uint8)
    _paste_marker(t.markers, origin, discs)
    _paste_marker(t.markers, terminal, discs)
    _expose(t, lines, discs, picture)
    about[MARGIN], about[ATTEMPTS], about[DISTRACTORS] = t.margin, attempts, distractors
    about[ORIGIN_Y], about[ORIGIN_X], about[TERMINAL_Y], about[TERMINAL_X] = (
        origin[1],
        origin[2],
        terminal[1],
        terminal[2],
    )
    about[FIRST_Y], about[FIRST_X] = contours[0, 0, 1], contours[0, 0, 2]
    about[SECOND_Y], about[SECOND_X] = contours[1, 0, 1], contours[1, 0, 2]


@compiled
def _draw_contours(t: Any, counter: Any, contours: Any, mask: Any, spread: Any) -> bool:
    """Attempt to place both contours, alternating paddles, and return whether this succeeded.

    Args:
        t: The tables.
        counter: State of the random generator, (1,) uint64.
        contours: Output, (2, paddles, 3). Direction, y and x of the start of each paddle.
        mask: Output, (R, R). Occupied area, without the last paddle of the first contour.
        spread: Output, (R, R). Occupied area dilated by the margin.
    """
    pivots = np.empty((2, 2), dtype=np.int64)
    if not _start_first(t, counter, contours[0, 0], pivots[0]):
        return False
    if not _start_second(t, counter, contours[0, 0], contours[1, 0], pivots[1]):
        return False
    _clear(mask, t.border)
    _clear(spread, t.border + t.margin)
    for count in range(1, t.contour_length):
        for snake in range(2):
            if not _extend(t, counter, contours[snake], count, pivots[snake], mask, spread):
                return False
    _take(t, contours[1, t.contour_length - 1], mask, spread)
    return True


@compiled
def _start_first(t: Any, counter: Any, paddle: Any, pivot: Any) -> bool:
    """Start the first contour at a random central cell, and return whether this succeeded.

    The free cells depend only on the direction. ``paddle`` (3,) and ``pivot`` (2,) are outputs.
    """
    for _ in range(SEED_TRIES):
        direction = below(counter, 360)
        count = t.start_counts[direction]
        if count == 0:
            return False
        paddle[0] = direction
        paddle[1], paddle[2] = nth_free(t.starts[direction], below(counter, count))
        if place(t, paddle, pivot):
            return True
    return False


@compiled
def _start_second(t: Any, counter: Any, first: Any, paddle: Any, pivot: Any) -> bool:
    """Start the second contour on a circle around the start of the first, occupied or not; return whether it succeeded.

    ``paddle`` (3,) and ``pivot`` (2,) are outputs.
    """
    for _ in range(SEED_TRIES):
        paddle[0] = below(counter, 360)
        angle = below(counter, 360)
        paddle[1] = np.int64(np.rint(first[1] + t.moves[AROUND, angle, 0]))
        paddle[2] = np.int64(np.rint(first[2] + t.moves[AROUND, angle, 1]))
        if place(t, paddle, pivot):
            return True
    return False


@compiled
def place(t: Any, paddle: Any, pivot: Any) -> bool:
    """Compute the pivot (2,) of a contour that starts with ``paddle``, in place.

    Returns whether head and pivot are in the picture.
    """
    direction = paddle[0]
    head_y = np.int64(np.ceil(paddle[1] + t.moves[HEAD, direction, 0]))
    head_x = np.int64(np.ceil(paddle[2] + t.moves[HEAD, direction, 1]))
    pivot[0] = np.int64(np.ceil(head_y + t.moves[BACK, direction, 0]))
    pivot[1] = np.int64(np.ceil(head_x + t.moves[BACK, direction, 1]))
    return _inside(t, head_y, head_x) and _inside(t, pivot[0], pivot[1])


@compiled
def _inside(t: Any, y: Any, x: Any) -> bool:
    return 0 <= y < t.resolution and 0 <= x < t.resolution


@compiled
def _extend(t: Any, counter: Any, contour: Any, count: int, pivot: Any, mask: Any, spread: Any) -> bool:
    """Add a paddle to a contour of ``count`` paddles, then occupy the area of the paddle before it.

    Returns whether a paddle was added. ``contour``, ``pivot``, ``mask`` and ``spread`` are changed in place.
    """
    last = contour[count - 1]
    direction = last[0]
    y = np.int64(np.ceil(pivot[0] + t.moves[ONWARD, direction, 0]))
    x = np.int64(np.ceil(pivot[1] + t.moves[ONWARD, direction, 1]))
    # Read from the tuple once, because each access inside the loop would change a reference count.
    candidates, followers, weights = t.candidates, t.followers[direction], t.weights[direction]
    openness, size = t.openness, t.resolution
    number = t.follower_counts[direction]
    cumulative = np.empty(number, dtype=np.float64)
    total = 0.0
    for follower in range(number):
        head_y, head_x = y + candidates[followers[follower], 0], x + candidates[followers[follower], 1]
        if 0 <= head_y < size and 0 <= head_x < size:
            total += weights[follower] * openness[spread[head_y, head_x]]
        cumulative[follower] = total
    if total < LEAST_WEIGHT:
        return False
    for _ in range(PADDLE_TRIES):
        threshold = uniform(counter) * total
        follower = 0
        while cumulative[follower] <= threshold and follower < number - 1:
            follower += 1
        chosen = followers[follower]
        paddle = contour[count]
        paddle[0] = 360 + chosen
        paddle[1], paddle[2] = y + candidates[chosen, 0], x + candidates[chosen, 1]
        if not _collides(t.stamps, t.boxes, paddle, mask):
            pivot[0], pivot[1] = y, x
            _take(t, last, mask, spread)
            return True
    return False


@compiled
def _collides(stamps: Any, boxes: Any, paddle: Any, mask: Any) -> Any:
    """Return whether the mask of a paddle overlaps the occupied area."""
    stamp, half = stamps[MASK, paddle[0]], stamps.shape[2] // 2
    top, bottom, left, right = _clipped(boxes[SOLID, paddle[0]], paddle, half, len(mask))
    down, aside = half - paddle[1], half - paddle[2]
    highest = np.int64(0)
    occupied = mask[top:bottom, left:right]
    required = stamp[top + down : bottom + down, left + aside : right + aside]
    for y in range(occupied.shape[0]):
        for x in range(occupied.shape[1]):
            highest = max(highest, np.int64(occupied[y, x]) + np.int64(required[y, x]))
    return highest >= COLLISION


@compiled
def _take(t: Any, paddle: Any, mask: Any, spread: Any) -> None:
    """Mark the area of a paddle as occupied, in place.

    Dilating the part inside the picture and cropping the dilated mask give the same result, because they differ only
    within the margin of the border, where ``spread`` is already occupied.
    """
    _paste(t.stamps, t.boxes, MASK, paddle, mask)
    _paste(t.stamps, t.boxes, SPREAD, paddle, spread)


@compiled
def _paste(stamps: Any, boxes: Any, kind: int, paddle: Any, picture: Any) -> None:
    """Set a picture to the maximum of itself and a stamp of ``paddle``, in place.

    Both are sliced first, because the compiler vectorises loops that start at 0.
    """
    stamp, half = stamps[kind, paddle[0]], stamps.shape[2] // 2
    top, bottom, left, right = _clipped(boxes[kind, paddle[0]], paddle, half, len(picture))
    down, aside = half - paddle[1], half - paddle[2]
    target = picture[top:bottom, left:right]
    source = stamp[top + down : bottom + down, left + aside : right + aside]
    for y in range(target.shape[0]):
        for x in range(target.shape[1]):
            target[y, x] = max(target[y, x], source[y, x])


@compiled
def _clipped(box: Any, paddle: Any, half: int, size: int) -> tuple[int, int, int, int]:
    """Return first row, end row, first column and end column of the part of a picture that a box of a stamp covers."""
    top, left = paddle[1] - half, paddle[2] - half
    return max(top + box[0], 0), min(top + box[1], size), max(left + box[2], 0), min(left + box[3], size)


@compiled
def _clear(mask: Any, border: int) -> None:
    """Reset a mask to an occupied border, in place."""
    size = len(mask)
    mask[:] = 0
    mask[:border] = 255
    mask[size - border :] = 255
    mask[:, :border] = 255
    mask[:, size - border :] = 255


@compiled
def _draw_distractors(t: Any, counter: Any, lines: Any, mask: Any, spread: Any) -> int:
    """Draw distractors (short contours) in the unoccupied area, in place; return their number.

    Masks are restored after a failed attempt.
    """
    size = t.resolution
    bits = np.empty((size, (size + 63) // 64), dtype=np.uint64)
    free = np.empty_like(bits)
    contour = np.empty((t.distractor_length, 3), dtype=np.int64)
    pivot = np.empty(2, dtype=np.int64)
    kept_mask, kept_spread = mask.copy(), spread.copy()
    room = mark_taken(mask, bits)
    drawn = 0
    for _ in range(t.distractors):
        for _ in range(DISTRACTOR_TRIES):
            if not _start_distractor(t, counter, bits, room, free, contour[0], pivot):
                continue
            if _grow_distractor(t, counter, contour, pivot, mask, spread):
                for number in range(t.distractor_length):
                    _paste(t.stamps, t.boxes, LINE, contour[number], lines)
                _copy(mask, kept_mask)
                _copy(spread, kept_spread)
                room = mark_taken(mask, bits)
                drawn += 1
                break
            _copy(kept_mask, mask)
            _copy(kept_spread, spread)
    return drawn


@compiled
def _copy(source: Any, target: Any) -> None:
    """Copy an array in place; a loop compiles much faster than an assignment to a slice."""
    for y in range(source.shape[0]):
        for x in range(source.shape[1]):
            target[y, x] = source[y, x]


@compiled
def _start_distractor(t: Any, counter: Any, bits: Any, room: int, free: Any, paddle: Any, pivot: Any) -> bool:
    """Start a distractor at a random free cell, and return whether this succeeded.

    Args:
        t: The tables.
        counter: State of the random generator, (1,) uint64.
        bits: Occupied pixels, from ``mark_taken``.
        room: Number of unoccupied pixels.
        free: Scratch array for the free cells.
        paddle: Output, (3,).
        pivot: Output, (2,).
    """
    for _ in range(SEED_TRIES):
        direction = below(counter, 360)
        if not t.usable[direction] or room / (t.resolution * t.resolution) < LEAST_ROOM:
            return False
        offsets = t.kernels[t.kernel_starts[direction] : t.kernel_starts[direction + 1]]
        count = find_free(bits, offsets, free)
        if count == 0:
            return False
        paddle[0] = direction
        paddle[1], paddle[2] = nth_free(free, below(counter, count))
        if place(t, paddle, pivot):
            return True
    return False


@compiled
def _grow_distractor(t: Any, counter: Any, contour: Any, pivot: Any, mask: Any, spread: Any) -> bool:
    """Extend a started distractor to its full length, in place, and return whether this succeeded."""
    for count in range(1, len(contour)):
        if not _extend(t, counter, contour, count, pivot, mask, spread):
            return False
    _take(t, contour[len(contour) - 1], mask, spread)
    return True


@compiled
def _paste_marker(markers: Any, centre: Any, discs: Any) -> None:
    """Set a picture to the maximum of itself and a disc around the start of a paddle, in place."""
    size, half = len(discs), markers.shape[2] // 2
    y, x = centre[1], centre[2]
    stamp = markers[_marker_place(y, size, len(markers)), _marker_place(x, size, len(markers))]
    for row in range(max(y - half, 0), min(y + half + 1, size)):
        for column in range(max(x - half, 0), min(x + half + 1, size)):
            discs[row, column] = max(discs[row, column], stamp[row - y + half, column - x + half])


@compiled
def _marker_place(place: int, size: int, places: int) -> int:
    """Return the index of the disc for a position along an axis, of ``places`` kinds of positions."""
    near = places // 2
    return min(place, near) + max(0, place - (size - 1 - near))


@compiled
def _expose(t: Any, lines: Any, discs: Any, picture: Any) -> None:
    """Combine contours, distractors and markers by their maximum, and stretch the range of intensities to 0 ... 255."""
    size = len(picture)
    of_contours, of_distractors, of_markers = t.levels[0], t.levels[1], t.levels[2]
    levels = np.empty((size, size), dtype=np.float64)
    lowest, highest = np.inf, 0.0
    for y in range(size):
        for x in range(size):
            brightest = max(of_contours[lines[0, y, x]], of_distractors[lines[1, y, x]])
            levels[y, x] = max(brightest, of_markers[discs[y, x]])
            lowest, highest = min(lowest, levels[y, x]), max(highest, levels[y, x])
    scale = 255.0 / (highest - lowest)
    for y in range(size):
        for x in range(size):
            picture[y, x] = np.uint8((levels[y, x] - lowest) * scale + 0.5)
