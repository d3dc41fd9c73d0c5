"""Self-pretraining: the loss of both objectives, loaded weights, and exact resumption."""

import math
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lra_bench.config.objects import build_pretraining
from lra_bench.config.pretraining import hiding_probability, phase_config, phase_spec
from lra_bench.config.schema import CellConfig, Measure, PretrainOptions, Train
from lra_bench.contracts import NOT_SCORED, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.data.inputs import InputRows
from lra_bench.runtime.hardware import Hardware
from lra_bench.training.checkpoint import BEST, NEXT, Checkpoints
from lra_bench.training.evaluation import evaluate
from lra_bench.training.loop import train
from lra_bench.training.loss import objective
from lra_bench.training.pretraining import (
    constant_floor,
    input_rows,
    load_pretrained,
    pretrain,
    section,
    with_head,
)
from tests.support.input_rows import PAIRS, TOKENS, VALUES, hidden_tokens, rows
from tests.support.model_cases import initial_model, task

CPU = Hardware(torch.device("cpu"), "fp32", 1, False, None, "cpu")
TARGET = "lra_bench.models.pretraining.SelfPretraining"
MASKED = PretrainOptions("masked", steps=6, _target_=TARGET)
CAUSAL = PretrainOptions("causal", steps=6, _target_=TARGET)
RECIPE = Train(steps=5, batch_size=4, lr=1e-2, warmup_steps=2, evaluate_every=3)


def config(options: PretrainOptions = MASKED) -> CellConfig:
    return CellConfig(
        seed=3, model={"label": "toy"}, train=RECIPE, pretrain=options, measure=Measure(evaluation_batch_size=5)
    )


def splits(spec: TaskSpec = TOKENS) -> dict[str, Rows]:
    return {"train": rows(spec), "validation": rows(spec, 8, seed=1)}


def network(spec: TaskSpec = TOKENS, **options):
    return initial_model(spec, **options)


@pytest.mark.parametrize("spec", [TOKENS, VALUES])
def test_the_loss_is_that_of_the_authors_and_sees_hidden_positions_only(spec):
    batch = hidden_tokens(spec).batch(np.arange(9), step=1)
    with with_head(network(spec), spec, config()) as wrapped:
        output = wrapped(batch)
    output.logits.retain_grad()
    loss = objective(output, batch)
    loss.backward()
    hidden = ~batch.targets[..., 0].isnan() if spec.channels else batch.targets != NOT_SCORED
    assert (output.logits.grad[~hidden] == 0).all() and (output.logits.grad[hidden] != 0).any()
    if spec.channels:
        expected = (output.logits[hidden] - batch.targets[hidden]).abs().mean()
    else:
        expected = F.cross_entropy(output.logits.reshape(-1, 11), batch.targets.reshape(-1), ignore_index=-100)
    torch.testing.assert_close(loss, expected)


def test_the_evaluation_of_values_is_the_mean_absolute_error():
    own = hidden_tokens(VALUES)
    with with_head(network(VALUES), VALUES, config()) as wrapped:
        found = evaluate(wrapped, own, own.spec, CPU, 6, "")
        batch = own.batch(np.arange(20))
        with torch.no_grad():
            values = wrapped.eval()(batch).logits
    scored = ~batch.targets.isnan()
    assert found.n == scored.sum()
    assert found.loss == pytest.approx((values - batch.targets)[scored].abs().mean().item(), rel=1e-5)


def test_the_causal_objective_does_not_depend_on_later_inputs():
    with with_head(network(causal=True), TOKENS, config(CAUSAL)) as wrapped:
        batch = InputRows(rows(), phase_spec(TOKENS), None).batch([0, 1, 2])
        changed = replace(batch, tokens=batch.tokens.clone())
        changed.tokens[:, 2:] = (changed.tokens[:, 2:] + 1) % 11
        before, after = wrapped.eval()(batch).logits, wrapped(changed).logits
    assert torch.equal(before[:, :2], after[:, :2]) and not torch.equal(before[:, 2], after[:, 2])
    with pytest.raises(UserError, match=r"pretrain=causal: the network is bidirectional; set backbone\.causal=true"):
        build_pretraining(config(CAUSAL), network(), TOKENS)


@pytest.mark.parametrize("spec", [TOKENS, VALUES])
def test_a_hidden_input_has_no_effect_and_is_embedded_as_one_more_row_or_channel(spec):
    model = network(spec)
    with with_head(model, spec, config()) as wrapped:
        own, vector = hidden_tokens(spec).batch([0, 1], step=1), wrapped.network.embedding.vector
        embedded = wrapped.network.embedding(own.inputs)
        table = wrapped.network.embedding.shown
        if spec.channels:
            expected = F.linear(own.values, torch.cat([table.weight, vector[:, None]], 1), table.bias)
        else:
            expected = F.embedding(own.tokens, torch.cat([table.weight, vector[None]]))
    torch.testing.assert_close(embedded, expected)


@pytest.mark.parametrize(
    ("spec", "options"), [(TOKENS, {"pooling": "cls"}), (VALUES, {}), (PAIRS, {"embedding": {"rank": 3}})]
)
@pytest.mark.parametrize("select", ["best", "last"])
def test_loaded_weights_are_the_pretrained_ones_by_name_and_the_head_is_new(tmp_path, spec, options, select):
    settings, checkpoints = config(replace(MASKED, select=select)), Checkpoints(tmp_path, math.inf)
    pretrained, fresh, initial = (network(spec, **options) for _ in range(3))
    names = list(fresh.state_dict())
    pretrain(pretrained, splits(spec), spec, settings, CPU, checkpoints)
    last = {name: value.clone() for name, value in pretrained.state_dict().items()}
    load_pretrained(fresh, spec, settings, checkpoints)
    found, before = fresh.state_dict(), initial.state_dict()
    assert list(found) == names == list(before) == list(last)
    assert all(torch.equal(found[name], before[name]) for name in names if name.startswith("head."))
    body = [name for name in names if not name.startswith("head.")]
    assert sum(not torch.equal(found[name], before[name]) for name in body) > len(body) / 2
    if select == "last":
        assert all(torch.equal(found[name], last[name]) for name in names)
    else:
        from safetensors.torch import load_file

        stored = load_file(checkpoints.of_pretraining().folder / BEST)
        for name in body:
            assert torch.equal(found[name], stored[f"network.{name.replace('embedding.', 'embedding.shown.')}"])


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Keep the weights of a network as those of the record ``toy/seed0``, and return the network."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    source = network()
    folder = tmp_path / "checkpoints" / "toy" / "seed0"
    Checkpoints(folder, 0).keep_best(source)
    (folder / NEXT).rename(folder / BEST)
    return source


def from_record(key: str = "toy/seed0") -> CellConfig:
    return config(PretrainOptions("record", record=key))


def test_weights_of_another_record_are_loaded_by_name_without_its_head(kept, tmp_path):
    other = task(classes=5, length=12)
    target = network(other, weights=1)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    load_pretrained(target, other, from_record(), Checkpoints(tmp_path / "own", 0))
    found, source = target.state_dict(), kept.state_dict()
    assert list(found) == list(before)
    for name, value in found.items():
        expected = before[name] if name.startswith("head.") else source[name]
        assert torch.equal(value, expected) and value.shape == before[name].shape


@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("toy/seed1", {}, "does not exist"),
        ("../toy/seed0", {}, "does not exist"),
        ("toy/seed0", {"depth": 3}, "are those of another network"),
        ("toy/seed0", {"depth": 1}, "are those of another network"),
        ("toy/seed0", {"width": 8}, "are those of another network"),
    ],
)
def test_weights_of_another_network_are_refused(kept, tmp_path, key, options, message):
    with pytest.raises(UserError, match=message) as error:
        load_pretrained(network(**options), TOKENS, from_record(key), Checkpoints(tmp_path / "own", 0))
    assert f"pretrain.record={key}" in str(error.value) and "\n" not in str(error.value)


def facts_of(parts, settings, spec):
    """Return the number of rows that are trained on, and the floor."""
    inputs = input_rows(parts, settings, spec)
    return len(inputs["train"]), constant_floor(inputs["validation"], 5)


def cell(folder, options: PretrainOptions = MASKED, spec: TaskSpec = TOKENS):
    """Run both phases of a cell as ``cells.stages`` does, from a new network and checkpoints at every step."""
    settings, parts, checkpoints = config(options), splits(spec), Checkpoints(folder, 0)
    model = network(spec, dropout=0.2, causal=options.name == "causal" or None)
    first = pretrain(model, parts, spec, settings, CPU, checkpoints)
    load_pretrained(model, spec, settings, checkpoints)
    second = train(model, parts, spec, settings, CPU, checkpoints, lambda *_: None)
    own = section(first, settings, spec, *facts_of(parts, settings, spec))
    kept = {name: value for name, value in own.items() if not name.endswith("seconds")}
    return kept, first.state.curve, second.state.curve, second.figures["final_weights_sha256"]


@pytest.mark.parametrize(
    "options",
    [MASKED, replace(CAUSAL, select="last"), replace(MASKED, probability=0.5, span=2, rows=9)],
    ids=["masked", "causal", "span"],
)
def test_a_cell_that_is_killed_in_either_phase_ends_bit_identical(tmp_path, monkeypatch, options):
    expected, save = cell(tmp_path / "whole", options), Checkpoints.save
    for kill in (2, 6, 8):  # in the pretraining, at its end, and in the training
        saves = []

        def killed(self, *parts, kill=kill, saves=saves):
            save(self, *parts)
            saves.append(self.folder.name)
            if len(saves) == kill:
                raise KeyboardInterrupt

        monkeypatch.setattr(Checkpoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            cell(tmp_path / str(kill), options)
        assert (saves[-1] == "pretraining") == (kill <= 6)
        monkeypatch.setattr(Checkpoints, "save", save)
        assert cell(tmp_path / str(kill), options) == expected


def test_files_of_the_pretraining_are_removed_when_the_cell_has_ended(tmp_path):
    cell(tmp_path)
    Checkpoints(tmp_path, 0).ended(finished=False)
    assert (tmp_path / "pretraining").is_dir()
    Checkpoints(tmp_path, 0).ended(finished=True)
    assert [path.name for path in tmp_path.iterdir()] == [BEST]


def test_no_test_row_is_read_and_validation_rows_are_not_trained_on(tmp_path, monkeypatch):
    """Tokens 9 and 10 occur only in rows of the validation and the test split."""
    parts = {"train": rows(), "validation": rows(count=8, low=9, high=10), "test": rows(count=8, low=10, high=11)}
    model, seen = network(), {True: set(), False: set()}
    states = model.states

    def spied(batch):
        seen[model.training] |= set(batch.tokens.unique().tolist()) | set(batch.targets.unique().tolist())
        return states(batch)

    monkeypatch.setattr(model, "states", spied)
    settings = config(replace(MASKED, probability=0.5, rows=3))
    pretrain(model, parts, TOKENS, settings, CPU, Checkpoints(tmp_path, math.inf))
    used = {0, 11, NOT_SCORED, *np.concatenate([parts["train"].row(row) for row in range(3)]).tolist()}
    assert seen[True] <= used and seen[False] == {0, 9, 11, NOT_SCORED}


@pytest.mark.parametrize("spec", [TOKENS, VALUES])
def test_the_floor_is_the_best_constant_prediction(spec):
    own = hidden_tokens(spec)
    loss, accuracy = constant_floor(own, 7)
    targets = own.batch(np.arange(20)).targets
    if spec.channels:
        values = targets[~targets[..., 0].isnan()].double()
        worse = [(values - (values.median(0).values + shift)).abs().mean().item() for shift in (-0.2, 0.2)]
        assert accuracy is None and loss < min(worse)
        assert loss == pytest.approx((values - values.quantile(0.5, 0)).abs().mean().item())
    else:
        counts = torch.bincount(targets[targets != NOT_SCORED]).double()
        assert loss == pytest.approx(torch.distributions.Categorical(counts).entropy().item())
        assert accuracy == pytest.approx((counts.max() / counts.sum()).item())


def test_a_probability_that_hides_nothing_is_refused():
    own = InputRows(rows(), phase_spec(TOKENS), 1e-9)
    with pytest.raises(UserError, match=r"pretrain\.probability: no position"):
        constant_floor(own, 7)


def test_defaults_depend_on_the_inputs_and_the_recipe():
    assert hiding_probability(MASKED, TOKENS) == 0.15 and hiding_probability(MASKED, VALUES) == 0.5
    assert hiding_probability(replace(MASKED, probability=0.4), VALUES) == 0.4
    assert hiding_probability(CAUSAL, TOKENS) is None
    own = phase_config(config(replace(MASKED, steps=None, lr=0.5))).train
    assert (own.steps, own.lr, own.batch_size) == (RECIPE.steps, 0.5, RECIPE.batch_size)


def test_pretraining_learns_a_rule_of_the_inputs(tmp_path):
    """Examples that repeat one token, so that hidden tokens can be predicted from the others."""
    tokens = [[1 + row % 8] * 12 for row in range(40)]
    table = datasets.Dataset.from_dict({"tokens": tokens, "target": [0] * 40})
    settings = config(replace(MASKED, steps=60))
    parts = {name: Rows(table, TOKENS) for name in ("train", "validation")}
    fit = pretrain(network(), parts, TOKENS, settings, CPU, Checkpoints(tmp_path, math.inf))
    found = section(fit, settings, TOKENS, *facts_of(parts, settings, TOKENS))
    assert found["floor_loss"] > 1.9 and found["validation_loss"] < 0.5
    assert found["validation_accuracy"] > 0.9 > 0.3 > found["floor_accuracy"]
    assert found["selected_step"] == fit.state.best_step and found["steps"] == 60
