"""Universal Transformer: steps, halting, weights and the ponder loss, compared with a loop over tokens."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import Batch, DepthBudget, UserError
from lra_bench.models.depth.controller import select_rows
from tests.support.model_cases import batch_for, model, randomise, task

TARGET = "lra_bench.models.depth.universal.Universal"
LENGTHS = (24, 17, 1)


def network(position="sinusoidal", *, depth=1, spec=None, noise=0.3, **options):
    """Build a network of ``depth`` shared blocks with random weights, so that tokens stop in different steps."""
    found = model(spec or task(), "transformer", position, depth=depth, controller={"_target_": TARGET, **options})
    return randomise(found, deviation=noise)


def plain(universal, position="sinusoidal", depth=1):
    """Return the network without its controller, with the same weights."""
    found = model(universal.spec, "transformer", position, depth=depth)
    state = {name: value for name, value in universal.state_dict().items() if not name.startswith("controller.")}
    found.load_state_dict(state)
    return found


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


class Step(torch.nn.Module):
    """Records the halting probabilities and the weights of every step of ``Universal``."""

    def __init__(self, controller):
        super().__init__()
        self.weights, self.stops = [], []
        original = controller._weights

        def recorded(*arguments):
            found = original(*arguments)
            self.weights.append(found[0].detach())
            self.stops.append(found[1])
            return found

        controller._weights = recorded


@pytest.mark.parametrize("bias", [-6.0, -1.0, 1.0, 20.0])
def test_weights_of_every_token_sum_to_one(bias):
    """Also for tokens that reach the last step; padding has no weights."""
    made = network(steps=5, halting_bias=bias).train()
    steps = Step(made.controller)
    batch = batch_for(made.spec, LENGTHS)
    made(batch)
    total = torch.stack(steps.weights).sum(0)
    real = torch.arange(24) < batch.lengths[:, None]
    close(total[real], torch.ones(int(real.sum()), dtype=torch.float64), 1e-12)
    assert (total[~real] == 0).all()
    assert torch.stack(steps.stops).sum(0)[real].eq(1).all()


@pytest.mark.parametrize("halting", ["act", "fixed"])
def test_one_step_equals_one_block(halting):
    made = network(steps=1, halting=halting, time_signal="none")
    batch = batch_for(made.spec, LENGTHS)
    close(made(batch).logits, plain(made)(batch).logits, 0)


def test_fixed_steps_equal_layers_with_the_same_weights():
    made = network("rope", steps=3, halting="fixed", time_signal="none")
    deep = model(made.spec, "transformer", "rope", depth=3)
    of_block = {name: value for name, value in made.state_dict().items() if name.startswith("blocks.0.")}
    state = {name: value for name, value in made.state_dict().items() if not name.startswith("blocks.")}
    for layer in range(3):
        state |= {name.replace("blocks.0.", f"blocks.{layer}.", 1): value for name, value in of_block.items()}
    deep.load_state_dict(state)
    batch = batch_for(made.spec, LENGTHS)
    close(made(batch).logits, deep(batch).logits, 0)


@pytest.mark.parametrize(("bias", "steps_used"), [(60.0, 1), (-60.0, 4)])
def test_certain_probabilities_use_one_step_or_all(bias, steps_used):
    """With p = 1 the first state has all weight, with p = 0 the last one."""
    made = network(steps=4, halting_bias=bias, noise=0.05)
    fixed = network(steps=steps_used, halting="fixed", noise=0.05)
    state = {name: value for name, value in made.state_dict().items() if not name.startswith("controller.")}
    fixed.load_state_dict(state)
    batch = batch_for(made.spec, LENGTHS)
    with made.controller.recording() as depths:
        close(made(batch).logits, fixed(batch).logits, 1e-9)
    assert depths[0].tolist() == [steps_used] * 3


def reference(made, batch, weighting):
    """Return the states (B, N, E), remainders and numbers of steps of tokens, computed without masks for one example.

    The padding is cut off, so that every row is computed alone.
    """
    controller, states, ponders = made.controller, [], []
    for row in range(batch.size):
        length = int(batch.lengths[row])
        one = Batch(batch.lengths[row : row + 1], batch.targets[row : row + 1], batch.tokens[row : row + 1, :length])
        x, context, _ = made._embed(one, None, False)
        run = made._pass(one, x, context)
        y, total, state = torch.zeros_like(x[0]), [0.0] * length, x
        stopped, count, remainder = [False] * length, [0] * length, [0.0] * length
        for step in range(controller.steps):
            inputs = controller._with_signals(run, state, step)
            p = controller.halt(F.layer_norm(inputs, (16,)))[0, :, 0].sigmoid()
            new = run.layer(0, inputs, context)[0]
            following = []
            for token in range(length):
                following.append(state[0, token])
                if stopped[token]:
                    continue
                count[token] += 1
                weight = p[token]
                if total[token] + weight > 1 - controller.epsilon or step == controller.steps - 1:
                    weight = remainder[token] = 1 - total[token]
                    stopped[token] = True
                total[token] = total[token] + weight
                base = y[token] if weighting == "accumulated" else (1 - weight) * y[token]
                y = torch.cat((y[:token], (base + weight * new[0, token])[None], y[token + 1 :]))
                following[-1] = new[0, token]
            state = torch.stack(following)[None]
        states.append(y)
        ponders.append(sum(n + r for n, r in zip(count, remainder, strict=True)) / length)
    return states, ponders


@pytest.mark.agrees("universal", compared="a loop over tokens, the formulas of the papers", within=1e-10)
@pytest.mark.parametrize("weighting", ["accumulated", "basic"])
@pytest.mark.parametrize("training", [True, False])
def test_equals_a_loop_over_tokens(weighting, training, within):
    made = network(steps=4, weighting=weighting, ponder_weight=0.5).train(training)
    batch = batch_for(made.spec, LENGTHS)
    x, context, _ = made._embed(batch, None, False)
    y, after = made.controller(made._pass(batch, x, context))
    states, ponders = reference(made, batch, weighting)
    for row, expected in enumerate(states):
        close(y[row, : len(expected)], expected, within)
    if training:
        close(after.losses["ponder"], 0.5 * torch.as_tensor(sum(ponders) / 3, dtype=torch.float64), within)


def test_gradient_flows_through_the_remainder_and_lowers_the_number_of_steps():
    """A larger bias stops earlier, so the gradient of the ponder loss with respect to it is negative."""
    made = network(steps=4, noise=0.05).train()
    loss = made(batch_for(made.spec, LENGTHS)).losses["ponder"]
    (gradient,) = torch.autograd.grad(loss, made.controller.halt.bias)
    assert gradient.item() < 0
    made.zero_grad()
    made(batch_for(made.spec, LENGTHS)).logits.square().sum().backward()
    assert made.controller.halt.weight.grad.abs().max() > 0


def test_steps_of_the_evaluation_limit_the_depth():
    """More steps never mean fewer, also beyond those of the training; each limit is reached by some token."""
    made = network(steps=4, halting_bias=-4.0)
    batch, means = batch_for(made.spec, LENGTHS), []
    budgets = [budget for budget in made.controller.depth_budgets() if budget.kind == "steps"]
    assert [budget.value for budget in budgets] == [1, 2, 8]
    for budget in budgets:
        with made.controller.at_budget(budget), made.controller.recording() as depths:
            made(batch)
        means.append(depths[0].mean().item())
        assert depths[0].max() <= budget.value
    assert means == sorted(means) and means[0] == 1 and means[-1] > 4
    assert made.controller.budget is None


def test_states_of_stopped_tokens_are_copied():
    """The second step leaves a token that stopped in the first one unchanged."""
    made = network(steps=2)
    inputs = []
    made.blocks[0].register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    made.train()
    steps = Step(made.controller)
    outputs = []
    made.blocks[0].register_forward_hook(lambda *found: outputs.append(found[2][0]))
    batch = batch_for(made.spec, (24, 24))
    with torch.no_grad():
        made.controller.halt.bias.fill_(0.5)
        made.controller.halt.weight.mul_(20)
        made(batch)
    first = steps.stops[0]
    assert first.any() and not first.all()
    x, context, _ = made._embed(batch, None, False)
    run = made._pass(batch, x, context)
    signals = made.controller._with_signals(run, torch.zeros_like(x), 1)
    close((inputs[1] - signals)[~first], outputs[0][~first])  # they go on from the state of the first step
    close((inputs[1] - signals)[first], outputs[0][first])  # and so do the copied states of the others


@pytest.mark.parametrize("kind", ["language_modeling", "tagging"])
def test_later_tokens_do_not_change_how_long_earlier_ones_run(kind):
    spec = task(kind, "causal", classes=11)
    made, batch = network(spec=spec, steps=4, halting_bias=0.0), batch_for(spec, (24, 24))
    changed = batch.tokens.clone()
    changed[:, 13:] = (changed[:, 13:] + 3) % 11
    with made.controller.recording() as depths:
        first, second = made(batch).logits, made(replace(batch, tokens=changed)).logits
    close(first[:, :13], second[:, :13])
    assert (depths[0][:, :13] == depths[1][:, :13]).all() and depths[0].unique().numel() > 1
    assert (first[:, 13:] - second[:, 13:]).abs().max() > 1e-3


def test_rows_do_not_depend_on_others():
    """In evaluation mode rows leave the batch when all of their tokens have stopped."""
    made, batch = network(steps=6, halting_bias=0.0), batch_for(task(), (24, 17, 5, 24))
    with torch.inference_mode():
        together = made(batch).logits
        alone = torch.cat([made(batch.rows(row, row + 1)).logits for row in range(4)])
    close(together, alone)


def test_rows_of_a_context_are_selected_with_their_padding_and_positions():
    made, batch = network(), batch_for(task(), LENGTHS)
    _, context, _ = made._embed(batch, None, False)
    chosen = select_rows(context.replace(positions=torch.arange(72).view(3, 24)), torch.tensor([2, 0]))
    assert chosen.padding.lengths.tolist() == [1, 24] and chosen.padding.valid.sum(1).tolist() == [1, 24]
    assert chosen.positions[:, 0].tolist() == [48, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, r"model\.controller\.steps=0"),
        ({"halting": "never"}, r"model\.controller\.halting=never.*act, fixed"),
        ({"weighting": "mean"}, r"model\.controller\.weighting=mean"),
        ({"time_signal": "learned"}, r"model\.controller\.time_signal=learned"),
        ({"epsilon": 1.0}, r"model\.controller\.epsilon=1\.0"),
        ({"ponder_weight": -1.0}, r"model\.controller\.ponder_weight=-1\.0"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        network(**options)


def test_networks_that_a_controller_cannot_run_are_refused():
    node = {"_target_": TARGET}
    with pytest.raises(UserError, match=r"passes values from layer to layer"):
        model(task(), "realformer", controller=node)
    with pytest.raises(UserError, match=r"backbone\.reversible=true"):
        model(task(), controller=node, reversible=True)
    assert "gives tokens different depths" in network(spec=task("tagging", "causal")).refuses_steps()
    assert DepthBudget("trained") in network().controller.depth_budgets()
