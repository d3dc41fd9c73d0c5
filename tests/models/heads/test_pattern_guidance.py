"""Pattern guidance: its definition, the heads it affects, and its decay."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.heads.pattern_guidance import PatternGuidance
from tests.models.heads.test_head_losses import losses
from tests.oracles.full import ORACLES
from tests.support.mixer_cases import context, make, rows
from tests.support.model_cases import batch_for, model, task


def guided(**own):
    options = {key: own.pop(key) for key in ("patterns", "weight", "hold_steps", "decay_steps") if key in own}
    return make("transformer", head_losses={"name": "pattern_guided", **options}, **own)


def distance(mixer, x, lengths, patterns, causal):
    """Compute the squared distance between guided attention and one-hot patterns by loops over tokens."""
    total = []
    for row, length in enumerate(lengths):
        real = x[row : row + 1, :length]
        visible = torch.ones(length, length, dtype=torch.bool)
        weights = ORACLES[type(mixer)](mixer, real, visible.tril() if causal else visible)[0]
        head, sums = 0, torch.zeros((), dtype=x.dtype)
        for name in ("self", "previous", "next", "first"):
            for _ in range(patterns.get(name, 0)):
                found = []
                for token in range(length):
                    at = {"self": token, "previous": token - 1, "next": token + 1, "first": 0}[name]
                    if 0 <= at < length:
                        found.append((weights[head, token] - torch.eye(length, dtype=x.dtype)[at]).square().sum())
                if found:
                    sums = sums + torch.stack(found).mean() / patterns[name]
                head += 1
        total.append(sums)
    return torch.stack(total).mean()


@pytest.mark.agrees("pattern_guided", compared="loss and gradients of the paper's formula", within=1e-10)
@pytest.mark.parametrize(
    "patterns",
    [{"next": 1, "previous": 1}, {"first": 2}, {"self": 1}, {"next": 1, "self": 1}, {"previous": 1, "first": 1}],
)
@pytest.mark.parametrize("causal", [False, True])
def test_loss_and_gradients_equal_the_definition(patterns, causal, within):
    if causal and "next" in patterns:
        with pytest.raises(UserError, match=r"model\.mixer\.head_losses\.patterns\.next=1: a causal"):
            guided(patterns=patterns, causal=True)
        return
    mixer = guided(patterns=patterns, causal=causal, weight=3.0)
    x, lengths = rows(3, 70).requires_grad_(), [70, 9, 1]
    actual = losses(mixer, x, lengths)["pattern_guided"]
    expected = 3 * distance(mixer, x, lengths, patterns, causal)
    assert actual.item() == pytest.approx(expected.item(), abs=within)
    gradients = (torch.autograd.grad(each, [x, mixer.query.weight]) for each in (actual, expected))
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() <= within


@pytest.mark.agrees("pattern_guided", compared="mean squared error over the tokens that have a target", within=1e-10)
@pytest.mark.parametrize("patterns", [{"self": 1, "first": 1}, {"next": 1}, {"previous": 2}])
def test_loss_is_the_authors_mean_squared_error_without_tokens_whose_target_is_outside(patterns, within):
    n, mixer = 20, guided(patterns=patterns, weight=1.0)
    x, visible = rows(2, n), torch.ones(n, n, dtype=torch.bool)
    weights = torch.stack([ORACLES[type(mixer)](mixer, each[None], visible)[0] for each in x]).detach()
    expected, head = 0.0, 0
    for name in ("self", "previous", "next", "first"):
        if count := patterns.get(name, 0):
            one = torch.eye(n, dtype=x.dtype)
            shifted = {"self": one, "previous": one.roll(-1, 1).tril(), "next": one.roll(1, 1).triu()}
            target = shifted.get(name, one[:1].expand(n, n))
            chosen, head = weights[:, head : head + count], head + count
            error = torch.nn.functional.mse_loss(chosen, target.expand_as(chosen))
            # The authors' mean includes tokens without a target, whose weights it draws to zero.
            outside = chosen[:, :, target.sum(-1) == 0].square().sum() / chosen.numel()
            expected += (error - outside).item() * n * n / target.sum().item()
    assert losses(mixer, x, [n, n])["pattern_guided"].item() == pytest.approx(expected, abs=within)


def test_default_patterns_by_direction():
    assert guided().head_losses[0].guided == [("previous", 1), ("next", 1)]
    assert guided(causal=True).head_losses[0].guided == [("previous", 1)]


def test_loss_is_zero_if_attention_equals_the_pattern():
    mixer = guided(patterns={"self": 1, "previous": 1})
    keys = 100 * torch.eye(6, 8, dtype=torch.float64).expand(1, 2, 6, 8)
    q = torch.stack((keys[:, 0], keys[:, 0].roll(1, 1)), 1)
    assert mixer.head_losses[0].loss(mixer, q, q, keys, q, context(6)).item() == pytest.approx(0, abs=1e-12)
    assert mixer.head_losses[0].loss(mixer, q, -q, keys, q, context(6)).item() > 1


def test_other_heads_receive_no_gradient():
    mixer = guided(patterns={"previous": 1})
    losses(mixer, rows(2, 40))["pattern_guided"].backward()
    gradient = mixer.query.weight.grad.unflatten(0, (2, -1))
    assert gradient[0].abs().max() > 0 and gradient[1].abs().max() == 0
    assert mixer.value.weight.grad is None


def test_optimisation_moves_attention_towards_the_pattern():
    mixer, x = guided(patterns={"self": 2}), rows(2, 20)
    optimizer = torch.optim.Adam(mixer.parameters(), 0.05)
    for _ in range(80):
        optimizer.zero_grad()
        losses(mixer, x)["pattern_guided"].backward()
        optimizer.step()
    q, k, _ = mixer.project(x)
    found = (q @ k.mT * 8**-0.5).softmax(-1)
    assert found.diagonal(dim1=-2, dim2=-1).mean() > 0.8


class TestDecay:
    def at(self, mixer, step):
        if step:
            with torch.no_grad():
                mixer.head_losses[0].after_step(step - 1, {})
        return losses(mixer, rows(1, 12)).get("pattern_guided", torch.zeros(())).item()

    def test_weight_is_constant_and_then_decays_to_zero(self):
        mixer = guided(hold_steps=10, decay_steps=20)
        full = self.at(mixer, 0)
        assert self.at(mixer, 10) == full
        shares = [self.at(mixer, step) / full for step in (11, 20, 25, 30, 31, 1000)]
        assert shares == pytest.approx([0.95, 0.5, 0.25, 0, 0, 0])

    def test_loss_is_omitted_after_the_decay(self):
        mixer = guided(hold_steps=1, decay_steps=1)
        self.at(mixer, 2)
        assert "pattern_guided" not in losses(mixer, rows(1, 12))

    def test_step_is_part_of_the_state(self):
        mixer, other = (guided(hold_steps=10, decay_steps=20) for _ in range(2))
        faded = self.at(mixer, 25)
        other.load_state_dict(mixer.state_dict())
        assert self.at(other, 0) == faded

    def test_every_layer_has_the_loss(self):
        network = model(task(), "pattern_guided", own={"head_losses": {"name": "pattern_guided", "hold_steps": 0}})
        stepped = [module for module in network.modules() if hasattr(module, "after_step")]
        assert len(stepped) == 2 and all(isinstance(module, PatternGuidance) for module in stepped)
        assert network.train()(batch_for(task())).losses["pattern_guided"] > 0


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"patterns": {"last": 1}}, "patterns.last"),
        ({"patterns": {"self": -1}}, "patterns.self=-1"),
        ({"patterns": {"self": 3}}, "patterns: guides 3"),
        ({"patterns": {}}, "patterns: guides 0"),
        ({"hold_steps": -1}, "hold_steps=-1"),
        ({"decay_steps": 0}, "decay_steps=0"),
    ],
)
def test_invalid_options_are_rejected(own, message):
    with pytest.raises(UserError, match=message):
        guided(**own)
