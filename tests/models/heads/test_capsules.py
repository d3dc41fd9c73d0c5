"""Merging of heads by routing, compared with loops over single numbers."""

import math

import numpy as np
import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.heads.capsules import SMALLEST_VARIANCE, DynamicRouting, ExpectationMaximisation
from tests.support.mixer_cases import HEADS, NODES, WIDTH, context, make, rows, run
from tests.support.model_cases import batch_for, model, task
from tests.support.storage import exponents, held_for_backward

KINDS = {"capsule_dynamic": DynamicRouting, "capsule_em": ExpectationMaximisation}
every_kind = pytest.mark.parametrize("name", KINDS)


def merge(name, heads=3, head_dim=4, width=10, **own):
    torch.manual_seed(0)
    module = KINDS[name](heads=heads, head_dim=head_dim, width=width, **{"capsules": 5, **own}).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def normalised(x):
    """Return the softmax of a list of numbers."""
    exponents = [math.exp(each - max(x)) for each in x]
    return [each / sum(exponents) for each in exponents]


def dynamic_reference(module, votes):
    """Compute dynamic routing of one token's votes [head][capsule], capsule by capsule."""
    heads, capsules = votes.shape[:2]
    logits = np.zeros((heads, capsules))
    for t in range(module.iterations):
        shares = [normalised(head_logits) for head_logits in logits.tolist()]
        found = []
        for n in range(capsules):
            s = sum(shares[h][n] * votes[h, n] for h in range(heads))
            length = math.sqrt(float(s @ s))
            found.append(length**2 / (1 + length**2) * s / length)
        if t < module.iterations - 1:
            logits += [[float(votes[h, n] @ found[n]) for n in range(capsules)] for h in range(heads)]
    return np.concatenate(found)


def em_reference(module, votes):
    """Compute EM routing of one token's votes [head][capsule], capsule by capsule and channel by channel."""
    heads, capsules, channels = votes.shape
    benefit = module.benefit.detach().numpy()
    shares = np.full((heads, capsules), 1 / capsules)
    for t in range(1, module.iterations + 1):
        means, logs = np.zeros((capsules, channels)), np.zeros((heads, capsules))
        active = np.zeros(capsules)
        for n in range(capsules):
            held, cost = shares[:, n].sum(), 0.0
            for d in range(channels):
                mean = (shares[:, n] * votes[:, n, d]).sum() / held
                variance = (shares[:, n] * (votes[:, n, d] - mean) ** 2).sum() / held + SMALLEST_VARIANCE
                means[n, d] = mean
                cost += (math.log(math.sqrt(variance)) + (1 + math.log(2 * math.pi)) / 2) * held
                logs[:, n] -= (votes[:, n, d] - mean) ** 2 / (2 * variance) + math.log(2 * math.pi * variance) / 2
            active[n] = 1 / (1 + math.exp(-0.01 * (1 - 0.95**t) * (benefit[n] - cost)))
        shares = np.array([normalised(head_logits) for head_logits in (logs + np.log(active)).tolist()])
        assert np.allclose(shares.sum(1), 1)
    return (active[:, None] * means).reshape(-1)


@pytest.mark.agrees("capsule_dynamic", "capsule_em", compared="routing of the paper, vote by vote", within=1e-10)
@every_kind
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("capsules", [1, 2, 5])
def test_outputs_equal_the_definition(name, iterations, capsules, within):
    module, x = merge(name, capsules=capsules, iterations=iterations), draw(2, 6, 12)
    loops = {"capsule_dynamic": dynamic_reference, "capsule_em": em_reference}[name]
    expected = np.zeros((2, 6, 10))
    for row in range(2):
        for token in range(6):
            heads = x[row, token].view(3, 4)
            votes = torch.stack([heads[h] @ module.votes[h] for h in range(3)]).detach().numpy()
            expected[row, token] = loops(module, votes.reshape(3, capsules, -1))
    assert np.abs(module(x).detach().numpy() - expected).max() <= within


@every_kind
def test_gradients_include_all_iterations(name):
    module, x = merge(name), draw(2, 3, 12).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,), fast_mode=True)


def test_single_iteration_is_the_squashed_mean_of_votes():
    module, x = merge("capsule_dynamic", iterations=1), draw(1, 4, 12)
    votes = x @ module.votes.flatten(0, 1) / 5
    assert (module(x).norm(dim=-1) <= 5**0.5).all()
    mean = votes.unflatten(-1, (5, -1))
    square = mean.square().sum(-1, keepdim=True)
    assert (module(x) - (mean * square.sqrt() / (1 + square)).flatten(2)).abs().max() < 1e-12


@every_kind
def test_equal_votes_determine_the_direction(name):
    """If all votes for a capsule are equal, the capsule has their direction, for any number of iterations."""
    module, vote = merge(name, iterations=5), draw(1, 1, 10)
    votes = vote.unflatten(-1, (5, -1)).expand(3, 1, 5, 2)
    routed = module.route(votes)[0]
    cosine = torch.nn.functional.cosine_similarity(routed, votes[0, 0], dim=-1)
    assert (cosine - 1).abs().max() < 1e-12


@every_kind
@pytest.mark.parametrize("size", [0.0, 1e-12, 1e6])
def test_outputs_and_gradients_are_finite_at_any_scale(name, size):
    module = merge(name).float()
    x = (size * draw(2, 3, 12).float()).requires_grad_()
    y = module(x)
    gradients = torch.autograd.grad(y.sum(), [x, *module.parameters()])
    assert y.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)


@every_kind
def test_votes_are_not_stored_for_the_backward_pass(name):
    module = merge(name, heads=8, head_dim=2, width=16, capsules=8).float()

    def at(n):
        return module(torch.randn(1, n, 16).requires_grad_())

    assert held_for_backward(lambda: at(512)) < 512 * 16 * 4 * 4 + 8 * 16 * 16 * 4
    assert max(exponents(at, (512, 1024))[0]) < 1.05


@every_kind
@pytest.mark.parametrize("mixer", ["local", "performer", "nystrom", "luna"])
def test_every_head_mixer_supports_the_merge(name, mixer):
    network, plain = (model(task(), mixer, own=own) for own in ({"merge": name}, {}))
    assert isinstance(network.mixers[0].output, KINDS[name])
    network.train()(batch_for(task())).logits.square().sum().backward()
    assert all(mixer.output.votes.grad.abs().max() > 0 for mixer in network.mixers)
    merged_size, plain_size = (each.parameter_parts()["body"] for each in (network, plain))
    assert merged_size == plain_size - 2 * WIDTH + (2 * HEADS if name == "capsule_em" else 0)


@every_kind
def test_options_are_given_by_name_or_mapping(name):
    assert NODES[name]["merge"] == {"name": name}
    for given in (name, {"name": name}, {"_target_": f"lra_bench.models.heads.capsules.{KINDS[name].__name__}"}):
        assert isinstance(make("local", merge=given).output, KINDS[name])
    module = make("transformer", merge={"name": name, "capsules": 4, "iterations": 7}).output
    assert (module.capsules, module.iterations) == (4, 7)
    assert torch.equal(run(make(name), rows(1, 9)), make(name)(rows(1, 9), context(9))[0])


def test_invalid_options_are_rejected():
    for given, message in (
        ("mean", r"merge=mean: must be one of capsule_dynamic, capsule_em"),
        ({"iterations": 3}, r"merge=None"),
        ({"name": "capsule_em", "capsules": 3}, r"merge\.capsules=3"),
        ({"name": "capsule_em", "capsules": 0}, r"merge\.capsules=0"),
        ({"name": "capsule_em", "iterations": 0}, r"merge\.iterations=0"),
        ({"name": "capsule_em", "rounds": 2}, r"merge\.rounds"),
    ):
        with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
            make("transformer", merge=given)
    with pytest.raises(UserError, match=r"merge: FNet has no such option"):
        make("fnet", merge="capsule_em")
