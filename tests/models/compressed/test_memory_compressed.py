"""Memory-compressed attention: compressed keys, their visibility, and the paper's stack."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.kernels.coarse import by_window, from_window
from tests.support.mixer_cases import context, make, rows, run


def with_kernel(mixer, value):
    """Return the mixer with kernels of ``value`` times the identity at every tap."""
    size = mixer.head_dim
    with torch.no_grad():
        for kernel in (mixer.compress_key, mixer.compress_value):
            kernel.copy_((value * torch.eye(size)).expand_as(kernel))
    return mixer


def test_windows_of_one_token_equal_full_attention():
    mixer, x, lengths = with_kernel(make("memory_compressed", stride=1), 1.0), rows(2, 30), [30, 11]
    full = make("transformer")
    full.load_state_dict({key: value for key, value in mixer.state_dict().items() if "compress" not in key})
    assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12
    assert (run(mixer, x, lengths) - run(full, x, lengths))[1, :11].abs().max() < 1e-12


def test_an_averaging_kernel_pools_keys_and_values():
    mixer, x = with_kernel(make("memory_compressed", stride=4), 0.25), rows(2, 20)
    q, k, v = mixer.project(x)
    pooled_k, pooled_v = (part.unflatten(2, (5, 4)).mean(3) for part in (k, v))
    expected = (q @ pooled_k.mT * mixer.head_dim**-0.5).softmax(-1) @ pooled_v
    assert (mixer.attend(q, k, v, context(20)) - expected).abs().max() < 1e-12


@pytest.mark.parametrize(("n", "windows"), [(1, 1), (8, 1), (9, 2), (24, 3)])
def test_one_compressed_key_for_each_full_or_partial_window(n, windows):
    mixer = make("memory_compressed", stride=8)
    assert mixer._compress(mixer.project(rows(1, n))[1], mixer.compress_key).shape[2] == windows


def test_causal_tokens_attend_to_the_first_token_and_earlier_windows():
    mixer, n = make("memory_compressed", causal=True, stride=4), 18
    q, k, v = mixer.project(rows(1, n))
    v = v.detach().requires_grad_()
    o = mixer.attend(q, k, v, context(n))
    for i in range(n):
        (gradient,) = torch.autograd.grad(o[:, :, i].square().sum(), v, retain_graph=True)
        visible = (gradient != 0).any(-1).any(1)[0].nonzero().flatten().tolist()
        assert visible == ([0] if i < 4 else list(range(i // 4 * 4)))


def test_every_other_layer_of_the_paper_stack_is_local():
    local = make("memory_compressed", local_block=8)
    assert not hasattr(local, "compress_key")
    block_local = make("block_local", block=8)
    block_local.load_state_dict(local.state_dict())
    x = rows(2, 30)
    assert torch.equal(run(local, x, [30, 9]), run(block_local, x, [30, 9]))
    kind = type(local)
    layers = [kind(16, 2, layer=layer, depth=4, local_block=8) for layer in range(4)]
    assert [hasattr(layer, "compress_key") for layer in layers] == [False, True, False, True]


@pytest.mark.parametrize("n", [1, 7, 8, 21])
def test_folding_by_windows_is_inverted(n):
    q = torch.arange(2 * 3 * n * 2.0).view(2, 3, n, 2)
    folded = by_window(q, 4)
    assert torch.equal(from_window(folded, 4, n), q)
    for i in range(n):
        assert torch.equal(folded[:, i % 4 :: 4, i // 4], q[:, :, i])


@pytest.mark.parametrize("own", [{"stride": 0}, {"local_block": 0}])
def test_invalid_options_are_rejected(own):
    with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}=0"):
        make("memory_compressed", **own)
