"""The disagreement loss: its definition and its extreme values."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.models.heads.test_head_losses import losses
from tests.oracles.full import ORACLES
from tests.support.mixer_cases import context, make, rows

KINDS = ("output", "subspace", "position")


def mixer_of(of, **own):
    return make("transformer", head_losses={"name": "disagreement", "of": of}, **own)


def reference_loss(mixer, x, lengths, of, causal):
    """Compute the loss by loops over sequences, tokens and pairs of heads."""
    total = []
    for row, length in enumerate(lengths):
        real = x[row : row + 1, :length]
        visible = torch.ones(length, length, dtype=torch.bool)
        weights = ORACLES[type(mixer)](mixer, real, visible.tril() if causal else visible)
        _, _, v = mixer.project(real)
        heads = {"position": weights, "subspace": v, "output": weights @ v.repeat_interleave(2 // v.shape[1], 1)}[of][0]
        tokens = []
        for token in range(length):
            pairs = []
            for one in heads[:, token]:
                for other in heads[:, token]:
                    scale = 1 if of == "position" else one.norm() * other.norm()
                    pairs.append((one * other).sum() / scale)
            tokens.append(torch.stack(pairs).mean())
        total.append(torch.stack(tokens).mean())
    return torch.stack(total).mean()


@pytest.mark.agrees("disagreement", compared="loss and gradients of the paper's formulas", within=1e-10)
@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_loss_and_gradients_equal_the_definition(of, causal, kv_heads, within):
    mixer, x, lengths = mixer_of(of, causal=causal, kv_heads=kv_heads), rows(2, 70).requires_grad_(), [70, 9]
    actual = losses(mixer, x, lengths)["disagreement"]
    expected = reference_loss(mixer, x, lengths, of, causal)
    assert actual.item() == pytest.approx(expected.item(), abs=within)
    if of == "subspace" and kv_heads == 1:
        return
    weights = [x, mixer.query.weight if of == "position" else mixer.value.weight]
    gradients = (torch.autograd.grad(each, weights) for each in (actual, expected))
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() <= within


@pytest.mark.parametrize("of", KINDS)
def test_extreme_values(of):
    """The loss is 1 for equal heads and 1 / H for orthogonal ones."""
    mixer, where = mixer_of(of), context(6)
    loss = mixer.head_losses[0]
    same = torch.randn(1, 1, 6, 8, dtype=torch.float64).expand(1, 2, 6, 8)
    orthogonal = torch.zeros(1, 2, 6, 8, dtype=torch.float64)
    orthogonal[:, 0, :, :4], orthogonal[:, 1, :, 4:] = 1.0, -2.0
    if of != "position":
        assert loss.loss(mixer, same, same, same, same, where).item() == pytest.approx(1)
        assert loss.loss(mixer, orthogonal, orthogonal, orthogonal, orthogonal, where).item() == pytest.approx(1 / 2)
        return
    # Each token attends to a single token, to the same in both heads or to different ones.
    keys = 100 * torch.eye(6, 8, dtype=torch.float64).expand(1, 2, 6, 8)
    assert loss.loss(mixer, same, keys, keys, same, where).item() == pytest.approx(1)
    shifted = torch.stack((keys[:, 0], keys[:, 0].roll(1, 1)), 1)
    assert loss.loss(mixer, same, shifted, keys, same, where).item() == pytest.approx(1 / 2)


@pytest.mark.parametrize("of", KINDS)
def test_gradient_descent_decreases_the_loss(of):
    mixer, x = mixer_of(of), rows(2, 20)
    optimizer, found = torch.optim.SGD(mixer.parameters(), 0.5), []
    for _ in range(20):
        loss = losses(mixer, x)["disagreement"]
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found[-1] < found[0] - 1e-3


def test_unknown_comparison_is_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.head_losses\.of=values"):
        mixer_of("values")
