"""Pathfinder pictures, compiled: two contours, distractors, markers.

The rules are those of drewlinsley/pathfinder (commit ab9c130), which drew Long Range Arena's sets, with all that looks
like an accident there: positions rounded up, a second contour that may start on the first, a contour's last paddle
that others may cross, and the rest that ``pathfinder_stamps`` says. Random numbers are drawn in the original's order.
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
LEAST_WEIGHT = 1e-4  # of all candidates together, below which there is no way on
LEAST_ROOM = 0.01  # of all pixels, below which no distractor is tried

# What is told about a picture. Origin and terminal are the marked ends; first and second are the starts of contours.
COLUMNS = (
    *("label", "margin", "attempts", "distractors", "origin_y", "origin_x", "terminal_y", "terminal_x"),
    *("first_y", "first_x", "second_y", "second_x"),
)
LABEL, MARGIN, ATTEMPTS, DISTRACTORS, ORIGIN_Y, ORIGIN_X, TERMINAL_Y, TERMINAL_X = range(8)
FIRST_Y, FIRST_X, SECOND_Y, SECOND_X = range(8, 12)


@compiled
def draw(t: Any, number: int, numbers: int, key: Any, first: int, pictures: Any, about: Any) -> None:
    """Fill those rows of ``pictures`` (n, R, R) uint8 and ``about`` (n, 12) that get margin ``number`` of ``numbers``.

    ``t`` are the ``Tables`` of this margin. The rows are pictures ``first``, ``first`` + 1, ...; each depends on its
    number and ``key`` alone.
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
    """One attempt at both contours, which grow in turn; paddles are (direction, y, x) of the stamp's start.

    ``mask`` ends as the room that they take, without the first one's last paddle; ``spread`` is the mask widened by
    the margin.
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
    """Somewhere in the middle: the free cells depend on the direction alone."""
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
    """Around the first one's start, whatever lies there."""
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
    """Find the pivot of a contour that starts with ``paddle``; false where head or pivot are outside the picture."""
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
    """Give a contour of ``count`` paddles one more, and only then take the room of the one before."""
    last = contour[count - 1]
    direction = last[0]
    y = np.int64(np.ceil(pivot[0] + t.moves[ONWARD, direction, 0]))
    x = np.int64(np.ceil(pivot[1] + t.moves[ONWARD, direction, 1]))
    # Taken out of the tuple once: each access inside the loop would count a reference.
    candidates, followers, weights = t.candidates, t.followers[direction], t.weights[direction]
    openness, size = t.openness, t.resolution
    number = t.follower_counts[direction]
    reached = np.empty(number, dtype=np.float64)
    total = 0.0
    for follower in range(number):
        head_y, head_x = y + candidates[followers[follower], 0], x + candidates[followers[follower], 1]
        if 0 <= head_y < size and 0 <= head_x < size:
            total += weights[follower] * openness[spread[head_y, head_x]]
        reached[follower] = total
    if total < LEAST_WEIGHT:
        return False
    for _ in range(PADDLE_TRIES):
        wanted = uniform(counter) * total
        follower = 0
        while reached[follower] <= wanted and follower < number - 1:
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
    stamp, half = stamps[MASK, paddle[0]], stamps.shape[2] // 2
    top, bottom, left, right = _clipped(boxes[SOLID, paddle[0]], paddle, half, len(mask))
    down, aside = half - paddle[1], half - paddle[2]
    highest = np.int64(0)
    taken = mask[top:bottom, left:right]
    wanted = stamp[top + down : bottom + down, left + aside : right + aside]
    for y in range(taken.shape[0]):
        for x in range(taken.shape[1]):
            highest = max(highest, np.int64(taken[y, x]) + np.int64(wanted[y, x]))
    return highest >= COLLISION


@compiled
def _take(t: Any, paddle: Any, mask: Any, spread: Any) -> None:
    """Let a paddle take its room.

    Widening the part inside the picture or cutting off the widened whole is the same: what differs lies within the
    margin of the border, where ``spread`` is full anyway.
    """
    _paste(t.stamps, t.boxes, MASK, paddle, mask)
    _paste(t.stamps, t.boxes, SPREAD, paddle, spread)


@compiled
def _paste(stamps: Any, boxes: Any, kind: int, paddle: Any, picture: Any) -> None:
    """The higher of a picture and a stamp of ``paddle``, in place.

    Cut out first, since a loop from 0 is one that the compiler turns into vector instructions.
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
    """The rows and columns of a picture that a box of the stamp covers."""
    top, left = paddle[1] - half, paddle[2] - half
    return max(top + box[0], 0), min(top + box[1], size), max(left + box[2], 0), min(left + box[3], size)


@compiled
def _clear(mask: Any, border: int) -> None:
    """Nothing but the border."""
    size = len(mask)
    mask[:] = 0
    mask[:border] = 255
    mask[size - border :] = 255
    mask[:, :border] = 255
    mask[:, size - border :] = 255


@compiled
def _draw_distractors(t: Any, counter: Any, lines: Any, mask: Any, spread: Any) -> int:
    """Short contours where there is room; returns how many found some. A failed attempt leaves no trace."""
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
    """As a loop: a slice on the left side takes the compiler a third of its time."""
    for y in range(source.shape[0]):
        for x in range(source.shape[1]):
            target[y, x] = source[y, x]


@compiled
def _start_distractor(t: Any, counter: Any, bits: Any, room: int, free: Any, paddle: Any, pivot: Any) -> bool:
    """Anywhere in the ``room`` pixels that ``bits`` leaves."""
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
    for count in range(1, len(contour)):
        if not _extend(t, counter, contour, count, pivot, mask, spread):
            return False
    _take(t, contour[len(contour) - 1], mask, spread)
    return True


@compiled
def _paste_marker(markers: Any, centre: Any, discs: Any) -> None:
    """The higher of a picture and a disc around the start of a paddle, in place."""
    size, half = len(discs), markers.shape[2] // 2
    y, x = centre[1], centre[2]
    stamp = markers[_marker_place(y, size, len(markers)), _marker_place(x, size, len(markers))]
    for row in range(max(y - half, 0), min(y + half + 1, size)):
        for column in range(max(x - half, 0), min(x + half + 1, size)):
            discs[row, column] = max(discs[row, column], stamp[row - y + half, column - x + half])


@compiled
def _marker_place(place: int, size: int, places: int) -> int:
    """Which of ``places`` kinds of position a place along an axis is."""
    near = places // 2
    return min(place, near) + max(0, place - (size - 1 - near))


@compiled
def _expose(t: Any, lines: Any, discs: Any, picture: Any) -> None:
    """Lay contours, distractors and markers over each other, and stretch the picture's own range to 0 ... 255."""
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
