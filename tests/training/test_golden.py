"""Regression tests: the first twenty steps of three models reproduce the stored losses.

On the platform of the file (same torch, same instruction set, same processor, one thread) they must be bit-identical.
On other platforms the order of sums differs. With AVX2 or without vector instructions instead of AVX-512, the relative
deviation of losses, norms and validation losses in twenty steps was at most 2.6e-7; ``TOLERANCE`` is forty times that.
"""

import pytest

from lra_bench.config.optimization import TRAINING_REVISION
from tests.support.golden_losses import FOLDER, MODELS, STEPS, golden_run, platform, stored_revision, stored_run
from tests.support.golden_outputs import FILE as OUTPUTS

TOLERANCE = 1e-5
ADVICE = (
    "the losses changed; if no output of a class in tests/golden/outputs.json did, raise TRAINING_REVISION in "
    "lra_bench/config/optimization.py, and store the losses with python -m tests.support.golden_losses"
)


def test_every_model_has_a_stored_file():
    assert sorted(path.stem for path in FOLDER.iterdir() if path != OUTPUTS) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_stored_losses_are_of_the_current_revision_of_training(model):
    assert stored_revision(model) == TRAINING_REVISION, "run python -m tests.support.golden_losses to store the losses"


@pytest.mark.parametrize("model", MODELS)
def test_first_steps_reproduce_the_stored_losses(model):
    stored_platform, expected = stored_run(model)
    found = golden_run(model)
    if stored_platform == platform():
        assert found == expected, ADVICE
    assert found.losses == pytest.approx(expected.losses, rel=TOLERANCE), ADVICE
    assert found.gradient_norms == pytest.approx(expected.gradient_norms, rel=TOLERANCE), ADVICE
    assert found.validation_loss == pytest.approx(expected.validation_loss, rel=TOLERANCE), ADVICE


@pytest.mark.parametrize("model", MODELS)
def test_stored_losses_of_models_differ_by_more_than_the_tolerance(model):
    """The comparison can detect a change: losses of different models differ by more than the tolerance."""
    run = stored_run(model)[1]
    assert len(set(run.losses)) == len(run.losses) == STEPS
    for other in set(MODELS) - {model}:
        assert run.losses != pytest.approx(stored_run(other)[1].losses, rel=100 * TOLERANCE)
