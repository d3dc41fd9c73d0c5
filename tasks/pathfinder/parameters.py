"""Parameters of the published Pathfinder sets, by resolution and difficulty."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lra_bench.contracts import UserError

# Names used by Long Range Arena, whose folders are named by the length of the contour.
CONTOUR_LENGTHS = {"easy": 6, "intermediate": 9, "hard": 14}


@dataclass(frozen=True)
class Parameters:
    """Parameters with which pictures are drawn; lengths are in pixels unless stated otherwise.

    A picture has two contours, then distractors in the remaining space, and discs on two ends of contours, with
    brightness 1.

    Attributes:
        resolution: Height and width of the picture.
        border: Distance to the edge that contours keep.
        length: Length of a paddle (dash).
        thickness: Thickness of a paddle.
        margins: Distances that a paddle may keep to others; one is chosen per picture.
        continuity: Factor of the angle between successive paddles, before its squared cosine becomes a weight.
        seed_distance: Distance between the starts of the two contours.
        marker_radius: Radius of the discs.
        contour_contrast: Brightness of contours.
        distractor_contrast: Brightness of distractors.
        distractor_paddles: Number of paddles of all attempted distractors together.
        contour_length: Number of paddles of a contour. A distractor has a third of it.
        oversampling: Factor by which pictures are drawn larger, then scaled down.
    """

    resolution: int
    border: int
    length: int
    thickness: float
    margins: tuple[int, ...]
    continuity: float
    seed_distance: int
    marker_radius: float
    contour_contrast: float
    distractor_contrast: float
    distractor_paddles: int
    contour_length: int = CONTOUR_LENGTHS["hard"]
    oversampling: int = 2

    @property
    def distractor_length(self) -> int:
        """Number of paddles of one distractor."""
        return self.contour_length // 3

    @property
    def distractors(self) -> int:
        """Number of distractors that are attempted."""
        return self.distractor_paddles // self.distractor_length


# From the docstrings of lra_benchmarks/data/pathfinder.py (google-research/long-range-arena, commit cd31e5c). Values
# not stated there are the defaults of snakes2_wrapper.py (drewlinsley/pathfinder, commit ab9c130). In that code the
# contrast of a contour is the product of the contrasts of the snake and the paddle, 2 and 0.75 at 32 pixels; the
# contrast of a distractor lacks the second factor.
_HARD = {
    parameters.resolution: parameters
    for parameters in (
        Parameters(32, 1, 2, 0.5, (1,), 1.0, 7, 1.5, 2 * 0.75, 2.0, 20),
        Parameters(64, 1, 5, 1.0, (1,), 1.8, 12, 2.5, 0.8, 0.8, 22),
        Parameters(128, 1, 5, 1.5, (2, 3), 1.8, 20, 3.0, 0.9, 0.9, 35),
        Parameters(256, 22, 5, 2.0, (3,), 1.8, 27, 5.0, 1.0, 1.0, 30),
    )
}
RESOLUTIONS = tuple(_HARD)


def published(resolution: int, difficulty: str) -> Parameters:
    """Return the published parameters. Raises ``UserError`` if there are none."""
    if resolution not in _HARD:
        known = ", ".join(str(known) for known in RESOLUTIONS)
        raise UserError(f"task.resolution={resolution}: has no published parameters; choose one of {known}")
    if difficulty not in CONTOUR_LENGTHS:
        raise UserError(f"task.difficulty={difficulty}: is not known; choose one of {', '.join(CONTOUR_LENGTHS)}")
    return replace(_HARD[resolution], contour_length=CONTOUR_LENGTHS[difficulty])
