"""States that represent the product of group elements exactly, with parameters set by hand.

Inputs are one-hot vectors of the group elements. All recurrences begin with a state of zeros.
"""

import itertools

import pytest
import torch

from tests.support.mixer_cases import WIDTH, context, make, run

N = 300
LARGE = 40.0  # σ(−LARGE) is about 4e-18


def one_hot(tokens):
    return torch.nn.functional.one_hot(tokens, WIDTH).double()[None]


@pytest.fixture
def bits():
    """Return random bits (N,) and the parity of all bits up to and including each."""
    tokens = torch.randint(2, (N,), generator=torch.Generator().manual_seed(0))
    return tokens, tokens.cumsum(0) % 2


def blank(name, **options):
    """Return a causal mixer without output projection, all of whose parameters are zero."""
    mixer = make(name, causal=True, **options)
    for parameter in mixer.parameters():
        torch.nn.init.zeros_(parameter)
    mixer.output = torch.nn.Identity()
    return mixer


@torch.no_grad()
def test_signed_min_gru_represents_parity(bits):
    """A one replaces h by 1/2 − h, the value of g at zero; a zero keeps h."""
    tokens, parity = bits
    mixer = blank("min_gru_negative")
    mixer.input.weight[0, :2] = torch.tensor([-LARGE, LARGE])
    assert (run(mixer, one_hot(tokens))[0, :, 0] - 0.5 * parity).abs().max() < 1e-12
    mixer = blank("min_gru")
    mixer.input.weight[0, :2] = torch.tensor([-LARGE, LARGE])
    assert (run(mixer, one_hot(tokens))[0, :, 0] - 0.5 * parity).abs().max() > 0.4


@torch.no_grad()
@pytest.mark.parametrize(("name", "correct"), [("mamba_negative", True), ("mamba", False)])
def test_signed_mamba_represents_parity(bits, name, correct):
    """A one replaces h by Δ B u − h, since exp(Δ A) is zero; a zero keeps h, since Δ is zero."""
    tokens, parity = bits
    mixer = blank(name, filter=1)
    mixer.filter.weight.fill_(1)
    mixer.value.bias[0] = 1.0  # channel 0 has the constant u of all tokens
    mixer.value.weight[1, 1] = LARGE  # channel 1 is the token
    mixer.choice[0, 1, 0] = 1.0
    mixer.step[0, 0, 0] = 2.0
    mixer.step_bias[0] = -LARGE
    rank = mixer.sizes[0]
    mixer.choice[0, 0, [rank, rank + mixer.sizes[1]]] = 1.0
    mixer.gate.bias[0] = 1.0
    y = run(mixer, one_hot(tokens))[0, :, 0]
    y = y / y[parity.argmax()]  # the first token with an odd number of ones
    assert ((y - parity).abs().max() < 1e-9) == correct


@torch.no_grad()
@pytest.mark.parametrize(("name", "correct"), [("mamba2_negative", True), ("mamba2", False)])
def test_signed_mamba2_represents_parity(bits, name, correct):
    tokens, parity = bits
    mixer = blank(name, filter=0)
    mixer.step.weight[0, 1], mixer.step.bias[0] = 2 * LARGE, -LARGE
    for constant in (mixer.query, mixer.key, mixer.value, mixer.gate):
        constant.bias[0] = 1.0
    mixer.norm.weight.fill_(1)
    y = run(mixer, one_hot(tokens))[0, :, 0]
    y = y / y[parity.argmax()]
    assert ((y - parity).abs().max() < 1e-9) == correct


@torch.no_grad()
def test_slstm_represents_parity(bits):
    """A one replaces c / n by the tanh of a multiple of −h, a zero keeps it; the first token sets it from its bias."""
    tokens, parity = bits
    mixer = blank("slstm", filter=0)
    size = mixer.norm.normalized_shape[0]
    mixer.gates.weight[0, 0, :2] = torch.tensor([-LARGE, LARGE])  # input gate
    mixer.gates.weight[0, size, :2] = torch.tensor([LARGE, -2 * LARGE])  # forget gate
    mixer.values.weight[0, 0, :2] = torch.tensor([LARGE, -LARGE])  # candidate of the first token
    mixer.recurrent[0, 0, 2 * size] = -3 * LARGE
    mixer.values.weight[0, size, :2] = LARGE  # output gate
    mixer.scale.fill_(1)
    y = run(mixer, one_hot(tokens))[0, :, 0]
    assert (y / y.abs() - (1 - 2 * parity)).abs().max() < 1e-12
    assert (y.abs() - y.abs().mean()).abs().max() < 1e-9


def permutations():
    """Return the matrices of the six permutations of three elements, and their reflections (6, 2, 3) and β (6, 2).

    A permutation is a product of at most two reflections at a plane that is normal to the difference of two axes.
    """
    axes, none = torch.eye(3).double(), torch.zeros(3).double()
    swaps = [(axes[i] - axes[j]) / 2**0.5 for i, j in ((0, 1), (0, 2), (1, 2))]
    products = [(), *((one,) for one in swaps), (swaps[0], swaps[1]), (swaps[1], swaps[0])]
    normals = torch.stack([torch.stack([*each, *[none] * (2 - len(each))]) for each in products])
    strengths = torch.tensor([[1.0] * len(each) + [-1.0] * (2 - len(each)) for each in products]).double()
    reflections = torch.eye(3).double() - 2 * normals[..., None] * normals[..., None, :]
    matrices = reflections[:, 1] @ reflections[:, 0]
    assert {tuple(each.argmax(0).tolist()) for each in matrices} == {*itertools.permutations(range(3))}
    return matrices, normals, strengths


@torch.no_grad()
@pytest.mark.parametrize("name", ["delta_product", "gated_delta_product"])
def test_delta_product_represents_the_products_of_all_permutations_of_three_elements(name):
    """With the values −k of a key k, the state plus I is multiplied by the reflections of a token."""
    mixer = blank(name, filter=0, gated=False, key_width=8)
    matrices, normals, strengths = permutations()
    size, width = mixer.key_dim, mixer.head_dim
    for step in range(2):
        first = step * size
        mixer.key.weight[first : first + 3, :6] = normals[:, step].T
        mixer.value.weight[step * width : step * width + 3, :6] = -normals[:, step].T
        mixer.strength.weight[step, :6] = LARGE * strengths[:, step]
    if name == "gated_delta_product":
        mixer.step.bias.fill_(-LARGE)  # no decay
    tokens = torch.randint(6, (N,), generator=torch.Generator().manual_seed(0))
    x = one_hot(tokens)
    mixer.query.bias[:3] = torch.tensor([1.0, 2.0, 3.0]).double()
    q, k, v = mixer.features(
        *(
            mixer.split(project(x), count)
            for project, count in zip((mixer.query, mixer.key, mixer.value), mixer._head_counts, strict=True)
        )
    )
    o, _ = mixer.recall(q, k, v, x, context(N), None)
    product, expected = torch.eye(3).double(), []
    for token in tokens.tolist():
        product = matrices[token] @ product
        expected.append((product - torch.eye(3)).T @ q[0, 0, 0, :3])
    assert (o[0, 0, :, :3] - torch.stack(expected)).abs().max() < 1e-9
