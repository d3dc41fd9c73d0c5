"""Depth-adaptive Transformer and CALM: exits, copied states, training losses, oracles and budgets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import NOT_SCORED, DepthBudget, UserError
from lra_bench.models.depth.depth_adaptive import smoothed
from lra_bench.models.depth.early_exit import all_layers
from tests.support.model_cases import batch_for, model, randomise, task

TARGETS = {
    "depth_adaptive": "lra_bench.models.depth.depth_adaptive.DepthAdaptive",
    "calm": "lra_bench.models.depth.calm.Calm",
}
KINDS = {
    "classification": (task(), (24, 17, 1, 9)),
    "matching": (task("matching", classes=2), ((24, 3), (17, 24), (1, 1), (9, 9))),
    "tagging": (task("tagging"), (24, 17, 1, 9)),
    "language": (task("language_modeling", "causal", classes=11), (24, 24, 24, 24)),
}
DEPTH = 4
SYSTEMS = [
    ("depth_adaptive", {"classifier": "geometric"}),
    ("depth_adaptive", {"classifier": "multinomial"}),
    ("depth_adaptive", {"classifier": "sequence"}),
    ("calm", {"confidence": "softmax"}),
    ("calm", {"confidence": "saturation"}),
    ("calm", {"confidence": "classifier"}),
]
every_system = pytest.mark.parametrize(("system", "options"), SYSTEMS)
every_kind = pytest.mark.parametrize("kind", KINDS)


def network(system, spec, noise=0.3, depth=DEPTH, **options):
    made = model(spec, "transformer", "sinusoidal", depth=depth, controller={"_target_": TARGETS[system], **options})
    made = randomise(made, deviation=noise)
    if options.get("confidence") == "classifier":
        made.controller.weight.normal_(generator=torch.Generator().manual_seed(1))
    return made


def refused(kind, options):
    return kind == "language" and options.get("classifier") == "sequence"


def evaluated(made, batch, budget):
    with made.controller.at_budget(budget), made.controller.recording() as depths, torch.inference_mode():
        logits = made(batch).logits
    return logits, depths[0]


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@every_system
@every_kind
def test_exit_at_the_last_layer_equals_the_plain_model(system, options, kind):
    spec, lengths = KINDS[kind]
    if refused(kind, options):
        with pytest.raises(UserError, match=r"classifier=sequence.*causal"):
            network(system, spec, **options)
        return
    made, batch = network(system, spec, **options), batch_for(spec, lengths)
    plain = model(spec, depth=DEPTH)
    plain.load_state_dict({name: each for name, each in made.state_dict().items() if "controller" not in name})
    with torch.inference_mode():
        expected = plain(batch).logits
    assert (made(batch).logits == expected).all()
    for budget in (DepthBudget("layers", DEPTH), DepthBudget("threshold", 1.5)):
        logits, depths = evaluated(made, batch, budget)
        real = torch.ones_like(batch.targets, dtype=torch.bool)
        if spec.per_token:
            real = torch.arange(24) < batch.lengths[:, None]
        close(logits[real], expected[real], 1e-12)
        assert depths[real].eq(DEPTH).all()


@every_system
@every_kind
def test_exits_at_one_layer_equal_the_network_of_that_depth(system, options, kind):
    spec, lengths = KINDS[kind]
    if refused(kind, options):
        return
    made, batch = network(system, spec, **options), batch_for(spec, lengths)
    shallow = model(spec, depth=2)
    state = {name: each for name, each in made.state_dict().items() if name in shallow.state_dict()}
    shallow.load_state_dict(state)
    logits, depths = evaluated(made, batch, DepthBudget("layers", 2))
    close(logits, shallow(batch).logits.detach(), 1e-12)
    assert depths.eq(2).all()


@every_system
@every_kind
def test_higher_thresholds_never_exit_earlier(system, options, kind):
    """At each threshold an exit of examples has the logits of its layer, which exits of others do not change."""
    spec, lengths = KINDS[kind]
    if refused(kind, options):
        return
    constant = {"decay": None} if system == "calm" else {}
    made, batch = network(system, spec, **options, **constant), batch_for(spec, lengths)
    by_layer = [evaluated(made, batch, DepthBudget("layers", layer))[0] for layer in range(1, DEPTH + 1)]
    before = None
    for threshold in (-2.0, *np.linspace(0, 1, 7), 2.0):
        logits, depths = evaluated(made, batch, DepthBudget("threshold", float(threshold)))
        if not spec.per_token:
            assert before is None or (depths >= before).all()
            expected = torch.stack(by_layer)[depths.long() - 1, torch.arange(4)]
            close(logits, expected)
        before = depths
    first, last = (evaluated(made, batch, DepthBudget("threshold", each))[1] for each in (-2.0, 2.0))
    real = torch.arange(24) < batch.lengths[:, None] if spec.per_token else torch.ones(4, dtype=torch.bool)
    assert first[real].eq(1).all() and last[real].eq(DEPTH).all()


def middle(made, batch):
    """Return the threshold of a budget at which tokens have different depths."""
    for threshold in np.linspace(-0.99, 0.99, 60):
        depths = evaluated(made, batch, DepthBudget("threshold", float(threshold)))[1]
        if len(depths.unique()) > 2:
            return DepthBudget("threshold", float(threshold))
    raise AssertionError("all tokens have the same depth at every threshold")


PER_TOKEN = [case for case in SYSTEMS if case[1].get("classifier") != "sequence"]


@pytest.mark.parametrize(("system", "options"), PER_TOKEN)
def test_later_tokens_change_neither_exits_nor_outputs_of_earlier_ones(system, options):
    spec, _ = KINDS["language"]
    made, batch = network(system, spec, **options), batch_for(spec, (24, 24))
    budget = middle(made, batch)
    changed = batch.tokens.clone()
    changed[:, 13:] = (changed[:, 13:] + 3) % 11
    first, depths = evaluated(made, batch, budget)
    second, after = evaluated(made, replace(batch, tokens=changed), budget)
    close(first[:, :13], second[:, :13])
    assert (depths[:, :13] == after[:, :13]).all()


@pytest.mark.parametrize(("system", "options"), PER_TOKEN)
def test_states_of_tokens_that_have_exited_are_copied_to_later_layers(system, options):
    spec, _ = KINDS["language"]
    made, batch = network(system, spec, **options), batch_for(spec, (24, 24))
    budget = middle(made, batch)
    inputs = []
    for block in made.blocks:
        block.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].clone()))
    _, depths = evaluated(made, batch, budget)
    assert len(inputs) == int(depths.max())
    for layer in range(1, len(inputs)):
        exited = depths <= layer - 1
        close(inputs[layer][exited], inputs[layer - 1][exited], 0)
        assert (inputs[layer][~exited] - inputs[layer - 1][~exited]).abs().amax(-1).min() > 0


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_padding_has_no_effect_on_exits(kind):
    spec, _ = KINDS[kind]
    for system, options in SYSTEMS:
        made, batch = network(system, spec, **options), batch_for(spec, (9, 9))
        longer = batch_for(spec, (9, 9), width=20, seed=3)
        longer.tokens[:, :9] = batch.tokens
        budget = DepthBudget("threshold", 0.5)
        (first, depths), (second, after) = (evaluated(made, each, budget) for each in (batch, longer))
        if spec.per_token:
            second, after = second[:, :9], after[:, :9]
        close(first, second)
        assert (depths == after).all()


def passes(made, batch):
    x, context, _ = made._embed(batch, None, False)
    run = made._pass(batch, x, context)
    return run, *all_layers(run)


def layer_nll(run, states, context):
    """Return the cross-entropy of every layer, averaged over scored targets of each row and over rows."""
    targets, found = run.targets, []
    for x in states[1:]:
        logits = run.logits(x, context)
        if targets.dim() == 1:
            found.append(F.cross_entropy(logits, targets))
        else:
            rows = [F.cross_entropy(a, b, ignore_index=NOT_SCORED) for a, b in zip(logits, targets, strict=True)]
            found.append(torch.stack(rows).mean())
    return torch.stack(found)


@pytest.mark.agrees("depth_adaptive", "calm", compared="the training losses of the papers", within=1e-10)
@every_kind
def test_aligned_and_weighted_losses_are_those_of_the_papers(kind, within):
    """The sum with the loss of the last layer is the weighted mean over layers, divided by the last weight."""
    spec, lengths = KINDS[kind]
    batch = batch_for(spec, lengths)
    for system, weights in (("depth_adaptive", torch.ones(DEPTH)), ("calm", torch.arange(1, DEPTH + 1))):
        made = network(system, spec).train()
        found = made(batch).losses["exits"]
        nll = layer_nll(*passes(made, batch))
        weights = weights.double() / weights.sum()
        close(found + nll[-1], (weights * nll).sum() / weights[-1], within)


@every_kind
@pytest.mark.parametrize("classifier", ["geometric", "multinomial", "sequence"])
def test_exit_probabilities_sum_to_one_and_determine_the_loss(kind, classifier):
    spec, lengths = KINDS[kind]
    if kind == "language" and classifier == "sequence":
        return
    made = network("depth_adaptive", spec, classifier=classifier, exit_weight=0.5, smoothing=0).train()
    batch = batch_for(spec, lengths)
    run, states, context = passes(made, batch)
    controller = made.controller
    log_q = controller.log_distribution(run, states, context)
    close(log_q.exp().sum(-1), torch.ones(log_q.shape[:-1], dtype=torch.float64), 1e-12)
    assert log_q.shape == (*batch.targets.shape, DEPTH)
    best = controller.best_exits(run, states, context)
    losses = -log_q.gather(-1, best[..., None])[..., 0]
    scored = batch.targets != NOT_SCORED
    expected = losses.mean() if losses.dim() == 1 else ((losses * scored).sum(1) / scored.sum(1)).mean()
    close(made(batch).losses["exit_classifier"], 0.5 * expected)
    if classifier == "geometric":
        chances = [controller.confidence(run, n, states[n - 1], states[n], context, None)[0] for n in range(1, DEPTH)]
        stay = torch.ones_like(chances[0])
        for layer, chance in enumerate([*chances, torch.ones_like(stay)]):
            close(log_q[..., layer].exp(), chance * stay)
            stay = stay * (1 - chance)


@pytest.mark.parametrize("oracle", ["likelihood", "correctness"])
def test_oracle_weighs_gain_against_layers(oracle):
    spec, lengths = KINDS["classification"]
    batch = batch_for(spec, lengths)
    made = network("depth_adaptive", spec, oracle=oracle, penalty=0.0)
    run, states, context = passes(made, batch)
    logits = torch.stack([run.logits(x, context) for x in states[1:]], 1)
    gains = logits.log_softmax(-1)[torch.arange(4), :, batch.targets]
    if oracle == "correctness":
        gains = (logits.argmax(-1) == batch.targets[:, None]).double()
    assert made.controller.best_exits(run, states, context).tolist() == gains.argmax(1).tolist()
    made.controller.penalty = 1e9
    assert made.controller.best_exits(run, states, context).tolist() == [0] * 4


def test_smoothing_is_the_normalised_kernel():
    gains = torch.randn(2, 30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scored = torch.rand(2, 30, generator=torch.Generator().manual_seed(1)) < 0.7
    places = torch.arange(30)
    for width in (0.5, 4.0, 30.0):
        kernel = (-(places[:, None] - places).square() / width).double().exp() * scored[:, None]
        expected = kernel @ gains / kernel.sum(-1, keepdim=True)
        found = smoothed(gains, scored, width)
        close(found[scored], expected[scored], 1e-4)
    assert (smoothed(gains, scored, 1e-3) - gains)[scored].abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["classification", "tagging", "language"])
def test_mixed_training_averages_random_paths(kind, monkeypatch):
    """With exits drawn at the last layer a path is the full pass, with exits at the first one its loss is that layer's.

    For the states of other tokens in between, compare with an explicit loop.
    """
    spec, lengths = KINDS[kind]
    made, batch = network("depth_adaptive", spec, training="mixed", paths=3).train(), batch_for(spec, lengths)
    nll = layer_nll(*passes(made, batch))
    for layer in (1, DEPTH):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randint", lambda *_, layer=layer, **__: torch.full(shape(made, batch), layer))
            close(made(batch).losses["exits"], 3 * nll[layer - 1])
    exits = torch.randint(1, DEPTH + 1, shape(made, batch), generator=torch.Generator().manual_seed(5))
    run, _, context = passes(made, batch)
    x = run.x
    for layer in range(DEPTH):
        new = run.layer(layer, x, run.context)[0]
        x = torch.stack(
            [
                torch.stack([new[b, t] if exits[b, min(t, exits.shape[1] - 1)] > layer else x[b, t] for t in range(24)])
                for b in range(len(x))
            ]
        )
    monkeypatch.setattr(torch, "randint", lambda *_, **__: exits)
    close(made(batch).losses["exits"], 3 * layer_nll(run, [run.x, x], context)[0])


def shape(made, batch):
    return tuple(batch.tokens.shape) if made.spec.per_token else (batch.size, 1)


def test_every_parameter_is_trained():
    for system, options in [*SYSTEMS, ("depth_adaptive", {"training": "mixed"})]:
        for kind, (spec, lengths) in KINDS.items():
            if refused(kind, options):
                continue
            for depth in (1, DEPTH):
                made = network(system, spec, depth=depth, **options).train()
                output = made(batch_for(spec, lengths))
                (output.logits.square().sum() + sum(output.losses.values(), torch.zeros(()))).backward()
                assert not [name for name, each in made.named_parameters() if each.grad is None], (system, kind, depth)


@pytest.mark.parametrize(
    ("system", "options", "words"),
    [
        ("depth_adaptive", {"training": "random"}, r"controller\.training=random.*aligned, mixed"),
        ("depth_adaptive", {"classifier": "poisson"}, r"controller\.classifier=poisson"),
        ("depth_adaptive", {"oracle": "best"}, r"controller\.oracle=best"),
        ("depth_adaptive", {"penalty": -1.0}, r"controller\.penalty=-1\.0"),
        ("depth_adaptive", {"paths": 0}, r"controller\.paths=0"),
        ("calm", {"confidence": "entropy"}, r"controller\.confidence=entropy"),
        ("calm", {"guarantee": "none"}, r"controller\.guarantee=none"),
        ("calm", {"failure": 0.0}, r"controller\.failure=0\.0"),
        ("calm", {"tolerances": [0.1, 1.0]}, r"controller\.tolerances=1\.0"),
        ("calm", {"decay": -1.0}, r"controller\.decay=-1\.0"),
    ],
)
def test_invalid_options_are_refused(system, options, words):
    with pytest.raises(UserError, match=words):
        network(system, task(), **options)


def test_batch_normalisation_is_refused():
    with pytest.raises(UserError, match=r"backbone\.norm=batch"):
        model(task(), controller={"_target_": TARGETS["calm"]}, norm="batch")
