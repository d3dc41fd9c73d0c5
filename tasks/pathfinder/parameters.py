"""What the published Pathfinder sets were drawn with, by resolution and difficulty."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lra_bench.contracts import UserError

# The names of Long Range Arena; its folders call them by the length of the contour.
CONTOUR_LENGTHS = {"easy": 6, "intermediate": 9, "hard": 14}


@dataclass(frozen=True)
class Parameters:
    """How pictures are drawn; lengths in pixels unless they are said to be in paddles.

    Two contours of ``contour_length`` paddles each are drawn, then distractors of a third of that, as many as
    ``distractor_paddles`` in all make, where room is left. A paddle is a line of ``length`` and ``thickness`` that
    keeps one of ``margins`` around it free, and nothing comes within ``border`` of the edge. The second contour starts
    ``seed_distance`` from the first. ``continuity`` multiplies the angle between neighbouring paddles before its
    cosine becomes a probability. Discs of ``marker_radius`` lie on two ends. Contours have the brightness
    ``contour_contrast``, distractors ``distractor_contrast``, discs 1. All is drawn ``oversampling`` times larger and
    scaled down.
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
        """Paddles of one distractor."""
        return self.contour_length // 3

    @property
    def distractors(self) -> int:
        """Distractors that are tried."""
        return self.distractor_paddles // self.distractor_length


# The docstrings of lra_benchmarks/data/pathfinder.py (google-research/long-range-arena, commit cd31e5c); what they do
# not name is the default of snakes2_wrapper.py (drewlinsley/pathfinder, commit ab9c130). There a contour's contrast is
# the product of one for the snake and one for the paddle, which at 32 are 2 and 0.75; a distractor's lacks the second.
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
    """The published parameters; raises ``UserError`` where there are none."""
    if resolution not in _HARD:
        known = ", ".join(str(known) for known in RESOLUTIONS)
        raise UserError(f"task.resolution={resolution}: has no published parameters; choose {known}")
    if difficulty not in CONTOUR_LENGTHS:
        raise UserError(f"task.difficulty={difficulty}: is not known; choose {', '.join(CONTOUR_LENGTHS)}")
    return replace(_HARD[resolution], contour_length=CONTOUR_LENGTHS[difficulty])
