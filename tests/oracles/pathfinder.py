"""Pathfinder images in plain code: full float arrays, every line drawn separately, no tables."""

from math import atan2, ceil, cos, pi, radians, sin

import numpy as np
from PIL import Image, ImageDraw

MASK_64 = (1 << 64) - 1


class RandomNumbers:
    """Random numbers of image ``number``, in plain integers."""

    step = 0x9E3779B97F4A7C15

    def __init__(self, seed, resolution, contour_length, number):
        key = np.random.SeedSequence([seed, resolution, contour_length]).generate_state(1, np.uint64)[0]
        self.counter = self.mix((int(key) + (number + 1) * self.step) & MASK_64)

    @staticmethod
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
        return z ^ (z >> 31)

    def bits(self):
        self.counter = (self.counter + self.step) & MASK_64
        return self.mix(self.counter)

    def below(self, bound):
        return ((self.bits() >> 32) * bound) >> 32

    def uniform(self):
        return (self.bits() >> 11) / 2**53

    def angle(self):
        return (self.below(360) - 180) * pi / 180


def bytescaled(array):
    low, high = array.min(), array.max()
    return ((array - low) * (255 / (high - low)) + 0.5).astype(np.uint8)


def shrunk(array, side):
    return np.asarray(Image.fromarray(array).resize((side, side), Image.Resampling.LANCZOS)) / 255


def dilated(array, offsets, outside):
    """Return the maximum of the values at ``offsets`` from each pixel; ``outside`` is the value beyond the edge."""
    reach = max(abs(offset) for pair in offsets for offset in pair)
    padded = np.pad(array, reach, constant_values=outside)
    size = len(array)
    shifts = [padded[reach + y : reach + y + size, reach + x : reach + x + size] for y, x in offsets]
    return np.max(shifts, axis=0)


def disc(radius):
    span = range(-radius, radius + 1)
    return [(y, x) for y in span for x in span if y * y + x * x <= radius * radius]


def moved(place, angle, distance):
    return ceil(place[0] + distance * np.sin(angle)), ceil(place[1] + distance * np.cos(angle))


def opposite(angle):
    return angle + pi if angle + pi < pi else angle - pi


class AttemptFailed(Exception):
    """Raised when an attempt to draw fails."""


class Drawer:
    def __init__(self, parameters, seed, number, border_rule=True):
        self.p, self.border_rule = parameters, border_rule
        self.size = parameters.resolution
        self.numbers = RandomNumbers(seed, parameters.resolution, parameters.contour_length, number)

    def draw(self):
        """Return the image and the values recorded about it."""
        label = self.numbers.below(2)
        self.margin = self.p.margins[self.numbers.below(len(self.p.margins))]
        attempts = 0
        while True:
            attempts += 1
            try:
                image, mask, starts, ends = self.contours()
                break
            except AttemptFailed:
                continue
        image, drawn = self.distractors(image, mask)
        marked_contour = self.numbers.below(2)
        origin, terminal = starts[marked_contour], ends[marked_contour if label else 1 - marked_contour]
        picture = np.max([image, self.marker(origin), self.marker(terminal)], axis=0)
        record = [label, self.margin, attempts, drawn, *origin, *terminal, *starts[0], *starts[1]]
        return bytescaled(picture), record

    def paddle(self, start, angle, contrast=1.0, size=None):
        """Return the line and the mask of one paddle in an image of ``size``."""
        p, scale = self.p, self.p.oversampling
        size = size or self.size
        reach = p.length + ceil(p.thickness) + self.margin
        centre = reach * scale
        head_y, head_x = moved((centre, centre), angle, p.length * scale)
        canvas = Image.new("F", (2 * centre + 1, 2 * centre + 1))
        ImageDraw.Draw(canvas).line([(centre, centre), (head_x, head_y)], fill=255, width=round(p.thickness * scale))
        line = np.asarray(canvas)
        room = dilated(line, disc(self.margin * scale), -np.inf).astype(np.uint8)
        pasted = []
        for stamp in (shrunk(bytescaled(line), 2 * reach + 1) * contrast, shrunk(room, 2 * reach + 1)):
            canvas_array = np.zeros((size + 2 * reach + 20, size + 2 * reach + 20), dtype=np.float32)
            top, left = start[0] + 10, start[1] + 10
            canvas_array[top : top + 2 * reach + 1, left : left + 2 * reach + 1] = stamp
            pasted.append(canvas_array[reach + 10 : reach + 10 + size, reach + 10 : reach + 10 + size])
        return pasted

    def framed(self, array, width):
        framed = np.ones_like(array)
        framed[width : self.size - width, width : self.size - width] = array[
            width : self.size - width, width : self.size - width
        ]
        return framed

    def free_cells(self, mask, angle):
        """Return the positions where a contour of this direction can start, in reading order."""
        half = self.p.length + self.margin
        _, kernel = self.paddle((half + 1, half + 1), angle, size=2 * half + 1)
        offsets = np.argwhere(kernel.astype(np.uint8)) - half
        room = np.ceil(dilated(mask, offsets.tolist(), -np.finfo(float).max if self.border_rule else 0.0) - 0.3)
        return [] if room.min() < 0 else np.argwhere(room == 0).tolist()

    def inside(self, *places):
        return all(0 <= place < self.size for pair in places for place in pair)

    def pivot(self, tail, angle):
        """Return where a contour continues after its first paddle, or None if that is outside the image."""
        head = moved(tail, angle, self.p.length)
        pivot = moved(head, opposite(angle), self.p.length + self.margin)
        return pivot if self.inside(head, pivot) else None

    def seed(self, mask, border):
        for _ in range(3):
            angle = self.numbers.angle()
            if (mask < 0.3).mean() < 0.01:
                raise AttemptFailed
            cells = self.free_cells(self.framed(mask, border), angle)
            if not cells:
                raise AttemptFailed
            tail = cells[self.numbers.below(len(cells))]
            if (pivot := self.pivot(tail, angle)) is not None:
                return tail, angle, pivot
        raise AttemptFailed

    def second_seed(self, first):
        for _ in range(3):
            angle, around = self.numbers.angle(), radians(self.numbers.below(360))
            reach = self.p.seed_distance
            tail = round(first[0] + reach * sin(around)), round(first[1] + reach * cos(around))
            if (pivot := self.pivot(tail, angle)) is not None:
                return tail, angle, pivot
        raise AttemptFailed

    def contours(self):
        mask = self.framed(np.zeros((self.size, self.size)), self.p.border)
        first = self.seed(mask, 2 * self.p.seed_distance)
        second = self.second_seed(first[0])
        snakes = []
        for tail, angle, pivot in (first, second):
            image, room = self.paddle(tail, angle, self.p.contour_contrast)
            snakes.append({"image": image, "last": room, "pivot": pivot, "angle": angle})
        for _ in range(self.p.contour_length - 1):
            for snake in snakes:
                mask = self.extend(snake, mask, self.p.contour_contrast)
        mask = np.maximum(mask, snakes[1]["last"])
        image = np.maximum(snakes[0]["image"], snakes[1]["image"])
        return image, mask, (first[0], second[0]), (snakes[0]["head"], snakes[1]["head"])

    def extend(self, snake, mask, contrast):
        """Add a paddle to ``snake`` in place and return the mask with the previous paddle."""
        p = self.p
        pivot = moved(snake["pivot"], snake["angle"], p.length + 2 * self.margin)
        dilated_mask = dilated(mask, disc(self.margin), -np.inf)
        radius = p.length + self.margin
        reached = set()
        for point in range(ceil(2 * pi * radius)):
            y, x = pivot[0] + radius * sin(point / radius), pivot[1] + radius * cos(point / radius)
            if self.inside((y, x)):
                reached.add((int(y), int(x)))
        heads = sorted(reached)
        angles = [atan2(y - pivot[0], x - pivot[1]) for y, x in heads]
        weights = []
        for (y, x), angle in zip(heads, angles, strict=True):
            bend = abs(angle - snake["angle"])
            bend = min(min(bend, 2 * pi - bend) * p.continuity, pi / 2)
            weights.append(cos(bend) ** 2 * (1 - dilated_mask[y, x]))
        if sum(weights) < 1e-4:
            raise AttemptFailed
        summed = np.cumsum(weights) / sum(weights)
        for _ in range(3):
            chosen = int(np.argmax(summed > self.numbers.uniform()))
            image, room = self.paddle(heads[chosen], opposite_of_outward(angles[chosen]), contrast)
            if (mask + room).max() < 1.8:
                previous = snake["last"]
                snake.update(
                    image=np.maximum(snake["image"], image),
                    last=room,
                    pivot=pivot,
                    angle=angles[chosen],
                    head=heads[chosen],
                )
                return np.maximum(mask, previous)
        raise AttemptFailed

    def distractors(self, image, mask):
        drawn = 0
        for _ in range(self.p.distractors):
            for _ in range(5):
                try:
                    image, mask = self.distractor(image, mask)
                except AttemptFailed:
                    continue
                drawn += 1
                break
        return image, drawn

    def distractor(self, image, mask):
        tail, angle, pivot = self.seed(mask, 1)
        line, room = self.paddle(tail, angle, self.p.distractor_contrast)
        snake = {"image": line, "last": room, "pivot": pivot, "angle": angle}
        for _ in range(self.p.distractor_length - 1):
            mask = self.extend(snake, mask, self.p.distractor_contrast)
        return np.maximum(image, snake["image"]), np.maximum(mask, snake["last"])

    def marker(self, centre):
        scale = self.p.oversampling
        y, x = np.mgrid[: self.size * scale, : self.size * scale]
        inside = (y - centre[0] * scale) ** 2 + (x - centre[1] * scale) ** 2 <= (self.p.marker_radius * scale) ** 2
        return shrunk(bytescaled(inside.astype(float)), self.size)


def opposite_of_outward(angle):
    return angle + pi if angle < 0 else angle - pi
