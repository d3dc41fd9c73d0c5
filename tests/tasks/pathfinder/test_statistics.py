"""Tests that statistics of Pathfinder pictures equal those of the original generator's pictures."""

import numpy as np
import pytest
from scipy import ndimage

from lra_bench.tasks.pathfinder.generation import draw_pictures, pictures
from lra_bench.tasks.pathfinder.markers import find_markers
from lra_bench.tasks.pathfinder.parameters import published
from tests.support.pathfinder_originals import originals

GENERATED = {(32, "hard"): 8000, (32, "intermediate"): 3000, (32, "easy"): 3000, (128, "hard"): 1000}


def statistics(pixels, parameters):
    """Return statistics of pictures by name, one number per picture."""
    flat = pixels.reshape(len(pixels), -1)
    means = flat.mean(axis=1)
    ends = find_markers(pixels, parameters)
    middle = parameters.resolution // 2 - 1
    return {
        "mean": means,
        "variance of the mean": (means - means.mean()) ** 2,
        "deviation within": flat.std(axis=1),
        "zero": (flat == 0).mean(axis=1),
        "above 127": (flat > 127).mean(axis=1),
        "from 200": (flat >= 200).mean(axis=1),
        "mean of non-zero": flat.sum(axis=1) / (flat > 0).sum(axis=1),
        "components": np.array([ndimage.label(picture > 30, np.ones((3, 3)))[1] for picture in pixels]),
        "distance of markers": np.hypot(*(ends[:, 0] - ends[:, 1]).T),
        "a marker in the middle": (abs(ends - middle) <= 1).all(axis=2).any(axis=1),
    }


def standard_errors(generated, original):
    """Return the difference of the means of two samples in standard errors."""
    spread = np.sqrt(np.var(generated, ddof=1) / len(generated) + np.var(original, ddof=1) / len(original))
    return float(abs(np.mean(generated) - np.mean(original)) / spread)


@pytest.mark.slow
@pytest.mark.parametrize(("resolution", "difficulty"), GENERATED)
def test_statistics_equal_those_of_the_original(shared_data, resolution, difficulty):
    p = published(resolution, difficulty)
    drawn = np.concatenate([part.pixels for part in pictures(p, 0, 0, GENERATED[resolution, difficulty])])
    generated = statistics(drawn, p)
    original = statistics(originals(shared_data, resolution, difficulty)[0], p)
    differences = {name: round(standard_errors(generated[name], original[name]), 2) for name in generated}
    assert max(differences.values()) < 3, differences


def test_statistics_differ_without_the_border_rule(shared_data):
    p = published(32, "hard")
    generated = statistics(draw_pictures(p, 0, 0, 1000, border_rule=False).pixels, p)
    original = statistics(originals(shared_data, 32, "hard")[0], p)
    assert min(standard_errors(generated[name], original[name]) for name in ("mean", "zero", "components")) > 15
