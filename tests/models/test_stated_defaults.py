"""Constructors state every option of a mixer, and comments in conf/model state the defaults that bases share."""

import inspect
import re

import pytest
import yaml
from hydra.utils import get_class

from lra_bench.build import known_options
from lra_bench.config.groups import option_files
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.mixer import HeadMixer
from lra_bench.models.recurrent.recurrence import Recurrence

COMMON = {option for base in (HeadMixer, SoftmaxAttention, Recurrence) for option in known_options(base)}
COMMENT = "# Defaults of the mixer: "


def mixer_of(name):
    node = yaml.safe_load(option_files("model")[name].read_text())["model"].get("mixer")
    return get_class(node["_target_"]) if node else None


def defaults_of(found):
    """Options with their defaults that one constructor names, without those that all mixers of its kind have."""
    parameters = inspect.signature(found.__init__).parameters.values()
    return {
        each.name: each.default for each in parameters if each.default is not each.empty and each.name not in COMMON
    }


def test_no_option_is_inherited_without_being_stated():
    mixers = {name: found for name in option_files("model") if (found := mixer_of(name)) is not None}
    hidden = {
        name: options
        for name, found in mixers.items()
        if (options := set().union(*map(defaults_of, found.__mro__[1:])) - set(inspect.signature(found).parameters))
    }
    assert len(mixers) > 80
    assert hidden == {}


COMMENTED = [name for name, path in option_files("model").items() if COMMENT in path.read_text()]


@pytest.mark.parametrize("name", COMMENTED)
def test_comments_state_the_defaults_of_the_constructor(name):
    text = option_files("model")[name].read_text().partition(COMMENT)[2].partition("\n")[0]
    stated = {option: yaml.safe_load(value) for option, value in re.findall(r"(\w+): (\[.*?\]|[^,;]+)", text)}
    for option, default in defaults_of(mixer_of(name)).items():
        assert re.search(rf"\b{option}\b", text), option
        if default is not None:
            assert stated[option] == (list(default) if isinstance(default, tuple) else default), option


def test_systems_with_shared_constructors_have_a_comment():
    assert len(COMMENTED) >= 26 and "performer" in COMMENTED
