"""How alike heads are, by its definition and at its ends."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.models.heads.test_head_losses import losses
from tests.oracles.full import ORACLES
from tests.support.mixer_cases import context, make, rows

KINDS = ("output", "subspace", "position")


def mixer_of(of, **own):
    return make("transformer", head_losses={"name": "disagreement", "of": of}, **own)


def likeness(mixer, x, lengths, of, causal):
    """Pair by pair, token by token, row by row."""
    total = []
    for row, length in enumerate(lengths):
        real = x[row : row + 1, :length]
        seen = torch.ones(length, length, dtype=torch.bool)
        weights = ORACLES[type(mixer)](mixer, real, seen.tril() if causal else seen)
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


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_definition_and_gradients(of, causal, kv_heads):
    mixer, x, lengths = mixer_of(of, causal=causal, kv_heads=kv_heads), rows(2, 70).requires_grad_(), [70, 9]
    ours = losses(mixer, x, lengths)["disagreement"]
    theirs = likeness(mixer, x, lengths, of, causal)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)
    if of == "subspace" and kv_heads == 1:
        return
    weights = [x, mixer.query.weight if of == "position" else mixer.value.weight]
    gradients = (torch.autograd.grad(each, weights) for each in (ours, theirs))
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < 1e-10


@pytest.mark.parametrize("of", KINDS)
def test_ends_of_the_scale(of):
    """One where heads are the same, 1 / H where they have nothing in common."""
    mixer, where = mixer_of(of), context(6)
    loss = mixer.head_losses[0]
    same = torch.randn(1, 1, 6, 8, dtype=torch.float64).expand(1, 2, 6, 8)
    apart = torch.zeros(1, 2, 6, 8, dtype=torch.float64)
    apart[:, 0, :, :4], apart[:, 1, :, 4:] = 1.0, -2.0
    if of != "position":
        assert loss.loss(mixer, same, same, same, same, where).item() == pytest.approx(1)
        assert loss.loss(mixer, apart, apart, apart, apart, where).item() == pytest.approx(1 / 2)
        return
    # Sharp heads: each token sees one other, in both the same or in each another.
    keys = 100 * torch.eye(6, 8, dtype=torch.float64).expand(1, 2, 6, 8)
    assert loss.loss(mixer, same, keys, keys, same, where).item() == pytest.approx(1)
    shifted = torch.stack((keys[:, 0], keys[:, 0].roll(1, 1)), 1)
    assert loss.loss(mixer, same, shifted, keys, same, where).item() == pytest.approx(1 / 2)


@pytest.mark.parametrize("of", KINDS)
def test_descending_drives_heads_apart(of):
    mixer, x = mixer_of(of), rows(2, 20)
    optimizer, found = torch.optim.SGD(mixer.parameters(), 0.5), []
    for _ in range(20):
        loss = losses(mixer, x)["disagreement"]
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert found[-1] < found[0] - 1e-3


def test_what_is_likened_must_be_known():
    with pytest.raises(UserError, match=r"model\.mixer\.head_losses\.of=values"):
        mixer_of("values")
