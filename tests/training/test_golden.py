"""The first twenty steps of three models are what they were when their files were kept.

Bit for bit on the platform of the file: same torch, same instructions, same processor, one thread. Elsewhere sums run
in another order. With AVX2 or without vector instructions in place of AVX-512 losses, norms and validation were off by
at most 2.6e-7 of their value in twenty steps, so ``TOLERANCE`` leaves room for forty times that.
"""

import pytest

from tests.support.golden_losses import FOLDER, MODELS, STEPS, golden_run, kept, platform

TOLERANCE = 1e-5


def test_every_model_has_its_file():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_the_first_steps_are_what_they_were(model):
    made_on, expected = kept(model)
    found = golden_run(model)
    if made_on == platform():
        assert found == expected
    assert found.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert found.gradient_norms == pytest.approx(expected.gradient_norms, rel=TOLERANCE)
    assert found.validation_loss == pytest.approx(expected.validation_loss, rel=TOLERANCE)


@pytest.mark.parametrize("model", MODELS)
def test_files_tell_one_loss_from_another(model):
    """What is compared has the resolution to show a change: models are further apart than the tolerance."""
    run = kept(model)[1]
    assert len(set(run.losses)) == len(run.losses) == STEPS
    for other in set(MODELS) - {model}:
        assert run.losses != pytest.approx(kept(other)[1].losses, rel=100 * TOLERANCE)
