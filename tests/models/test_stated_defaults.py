"""Constructors declare every option of a mixer, and comments in conf/model list defaults of shared constructors."""

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


def defaults_of(kind):
    """Return the options of one constructor with their defaults, without those that all mixers of its kind have."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {
        each.name: each.default for each in parameters if each.default is not each.empty and each.name not in COMMON
    }


def test_no_option_is_inherited_without_being_declared():
    mixers = {name: kind for name in option_files("model") if (kind := mixer_of(name)) is not None}
    undeclared = {
        name: options
        for name, kind in mixers.items()
        if (options := set().union(*map(defaults_of, kind.__mro__[1:])) - set(inspect.signature(kind).parameters))
    }
    assert len(mixers) > 80
    assert undeclared == {}


COMMENTED = [name for name, path in option_files("model").items() if COMMENT in path.read_text()]


@pytest.mark.parametrize("name", COMMENTED)
def test_comments_list_the_defaults_of_the_constructor(name):
    text = option_files("model")[name].read_text().partition(COMMENT)[2].partition("\n")[0]
    stated = {option: yaml.safe_load(value) for option, value in re.findall(r"(\w+): (\[.*?\]|[^,;]+)", text)}
    for option, default in defaults_of(mixer_of(name)).items():
        assert re.search(rf"\b{option}\b", text), option
        if default is not None:
            assert stated[option] == (list(default) if isinstance(default, tuple) else default), option


def test_systems_with_shared_constructors_have_a_comment():
    assert len(COMMENTED) >= 26 and "performer" in COMMENTED
