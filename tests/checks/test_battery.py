"""The checks accept every model that does what it declares, and name what a broken one does wrong."""

from dataclasses import replace

import pytest
import torch

from lra_bench.checks.battery import check_before_training, check_model
from lra_bench.checks.subject import is_users, located
from lra_bench.config.compose import compose
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.runtime.limits import TimeUp
from tests.support.own_mixers import BROKEN, RIGHT, Detached, OneKind, ReadsNextToken, ReadsPadding

TASK = TaskSpec("toy", "1", "classification", "either", classes=3, train_length=64, vocabulary_size=9)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config_of():
    config = compose(["model=local", "task=listops", "protocol=smoke"]).config

    def of(mixer):
        config.model = {"label": mixer.__name__, "mixer": {"_target_": f"{mixer.__module__}.{mixer.__name__}"}}
        return config

    return of


@pytest.mark.one_in(8)
@pytest.mark.parametrize("mixer", RIGHT, ids=lambda mixer: mixer.__name__)
def test_a_right_mixer_passes(mixer, config_of):
    assert [each for each in check_model(config_of(mixer), TASK) if each.ok is False] == []
    causal = mixer.spec.causal == "exact"
    check_before_training(config_of(mixer), TASK, causal, CPU)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mixer", BROKEN, ids=lambda mixer: mixer.__name__)
def test_a_broken_mixer_is_named(mixer, config_of):
    wrong = {each.what: each.found for each in check_model(config_of(mixer), TASK) if each.ok is False}
    assert BROKEN[mixer] in wrong
    assert "; " in wrong[BROKEN[mixer]], "what is wrong; what to change"


@pytest.mark.parametrize(
    ("mixer", "causal", "what"), [(ReadsNextToken, True, "future"), (ReadsPadding, False, "padding")]
)
def test_a_wrong_declaration_is_refused_before_training(mixer, causal, what, config_of):
    with pytest.raises(UserError, match=rf"{mixer.__name__}.*{what}"):
        check_before_training(config_of(mixer), TASK, causal, CPU)


def test_parameters_without_gradient_are_counted(config_of):
    assert check_before_training(config_of(Detached), TASK, True, CPU) > 0


@pytest.mark.parametrize("kind", ["classification", "tagging", "language_modeling"])
def test_a_network_that_supports_only_the_task_is_checked_on_it(kind, config_of):
    config = config_of(Detached)
    config.model = {"label": "own", "network": {"_target_": f"{OneKind.__module__}.OneKind", "kind": kind}}
    task = replace(TASK, kind=kind, direction="causal" if kind == "language_modeling" else "either", classes=9)
    assert check_before_training(config, task, task.direction == "causal", CPU) == 0
    wrong = {**config.model["network"], "shift": 1}
    config.model = {"label": "own", "network": wrong}
    if kind == "language_modeling":
        with pytest.raises(UserError, match="future tokens"):
            check_before_training(config, task, True, CPU)


def test_a_limit_of_time_or_memory_is_not_a_mistake_of_the_model(config_of):
    for error in (TimeUp(), torch.OutOfMemoryError("CUDA out of memory")):
        with pytest.raises(type(error)), located(config_of(Detached)):
            raise error
    with pytest.raises(UserError, match="KeyError"), located(config_of(Detached)):
        raise KeyError("other")


def test_the_mixer_of_other_layers_is_checked_too(config_of):
    config = config_of(Detached)
    config.model = {"label": "local", "mixer": {"_target_": "lra_bench.models.sparse.sliding_window.SlidingWindow"}}
    assert not is_users(config)
    target = f"{Detached.__module__}.{Detached.__name__}"
    hybrid = replace(config.backbone.hybrid, every=2, mixer={"_target_": target})
    assert is_users(replace(config, backbone=replace(config.backbone, hybrid=hybrid)))
