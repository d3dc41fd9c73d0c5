"""Options of self-pretraining: keys of cells, and combinations that are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from lra_bench.config import compose as configuration
from lra_bench.config.hashing import config_hash, covered
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan

LISTOPS = ["task=listops", "protocol=smoke"]  # of the default model, transformer
OFF = CellConfig().pretrain


def composed(*overrides: str) -> configuration.Composed:
    return configuration.compose([*LISTOPS, *overrides])


def test_the_key_covers_every_option_of_pretraining_and_nothing_without_it():
    plain, masked = composed().config, composed("pretrain=masked").config
    assert plain.pretrain == OFF and "pretrain" not in covered(plain)
    assert covered(masked) == {**covered(plain), "pretrain": covered(masked)["pretrain"]}
    changes = {"steps": 5, "probability": 0.2, "span": 3, "lr": 1e-4, "rows": 9, "select": "last", "name": "causal"}
    changed = [replace(masked, pretrain=replace(masked.pretrain, **{name: value})) for name, value in changes.items()]
    assert len({config_hash(each, "data") for each in (plain, masked, *changed)}) == len(changes) + 2


def test_the_causal_objective_makes_the_network_causal():
    assert composed("pretrain=causal").config.backbone.causal is True
    assert composed("pretrain=masked").config.backbone.causal is None


def test_the_name_of_the_variant_ends_in_the_objective():
    assert composed("pretrain=masked").differences == {"pretrain": "masked"}
    assert composed("pretrain=masked").modified == ()
    assert composed("pretrain=record", "pretrain.record=a/b").modified == ()
    assert composed("pretrain=masked", "pretrain.steps=7").modified == ("pretrain.steps",)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pretrain=masked", "pretrain.probability=0"], "pretrain.probability=0.0: must be above 0 and below 1"),
        (["pretrain=masked", "pretrain.probability=1"], "pretrain.probability=1.0: must be above 0 and below 1"),
        (["pretrain=masked", "pretrain.span=0"], "pretrain.span=0: must be at least 1"),
        (["pretrain=masked", "pretrain.select=all"], "pretrain.select=all: choose best or last"),
        (["pretrain=denoising"], "pretrain=denoising: there is no such pretrain"),
        (["pretrain.steps=4"], "pretrain.steps=4: needs pretrain=masked or pretrain=causal"),
        (["pretrain=causal", "pretrain.span=3"], "pretrain.span=3: pretrain=causal hides no inputs"),
        (["pretrain=causal", "backbone.causal=false"], "backbone.causal=false: pretrain=causal needs a causal network"),
        (["pretrain=masked", "model=bag_of_tokens"], "pretrain=masked: BagOfTokens returns no hidden states of tokens"),
        (["pretrain=masked", "model=calm"], "pretrain=masked: is not supported, because Calm gives tokens different"),
        (["pretrain=masked", "backbone.depth=2", "backbone.funnel=2"], "because backbone.funnel shortens the sequence"),
        (["pretrain=record"], "pretrain.record: has no value; set it to the key of a record"),
        (
            ["pretrain=record", "pretrain.record=a", "pretrain.lr=1e-3"],
            "pretrain.lr=0.001: pretrain=record trains on no",
        ),
        (["pretrain=masked", "pretrain.record=a"], "pretrain.record=a: needs pretrain=record"),
        (["pretrain.name=masked"], "pretrain.name=masked: is set by lra-bench; write pretrain=masked"),
    ],
)
def test_contradictions_are_one_sentence(overrides, message):
    with pytest.raises(UserError) as error:
        plan([*LISTOPS, *overrides], Path("no-results"))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_language_modelling_is_its_own_pretraining(shared_data, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(shared_data))
    with pytest.raises(
        UserError, match="enwik8 predicts its own inputs, so the task is its own pretraining; set pretr"
    ):
        plan(["task=enwik8", "task.allow_partial=true", "protocol=smoke", "pretrain=masked"], Path("no-results"))
