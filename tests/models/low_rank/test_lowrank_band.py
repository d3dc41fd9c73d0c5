"""Low-rank and band heads: receptive fields, ranks and parameters."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import HEADS, WIDTH, context, dense_output, make, rows, run


def jacobian(mixer, n):
    """Return which of n tokens the outputs of each head depend on through its values, bool (H, N, N)."""
    q, k, v = mixer.project(rows(1, n))
    found = torch.autograd.functional.jacobian(lambda v: mixer.attend(q, k, v, context(n))[0, :, :, 0], v)
    return torch.stack([found[head, :, 0, head].abs().sum(-1) > 0 for head in range(HEADS)])


@pytest.mark.parametrize("causal", [False, True])
def test_low_rank_heads_attend_to_all_tokens_and_band_heads_to_a_window(causal):
    low, band = jacobian(make("lowrank_band", causal=causal), 40)
    lag = torch.arange(40)[:, None] - torch.arange(40)
    earlier = lag >= 0 if causal else lag < 40
    assert torch.equal(low, earlier)
    assert torch.equal(band, earlier & (lag.abs() <= 5))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_scores_have_the_rank(rank):
    mixer, x = make("lowrank_band", rank=rank), rows(2, 40)
    q, k, _ = mixer.project(x)
    assert torch.linalg.matrix_rank(q @ k.mT).tolist() == [[rank, WIDTH // HEADS]] * 2


@pytest.mark.parametrize("low", [0, 1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_all_heads_may_be_of_one_kind(low, causal):
    mixer, x = make("lowrank_band", low_rank_heads=low, causal=causal), rows(2, 61)
    found, expected = run(mixer, x, [61, 30]), dense_output(mixer, x, [61, 30])[0]
    assert (found[0] - expected[0]).abs().max() < 1e-12
    assert (found[1, :30] - expected[1, :30]).abs().max() < 1e-12
    if low == 0:
        local = make("local", causal=causal, window=5)
        local.load_state_dict(mixer.state_dict())
        assert (run(local, x) - run(mixer, x)).abs().max() < 1e-12


def test_low_rank_heads_have_fewer_parameters():
    mixer, full = make("lowrank_band", rank=3), make("transformer")
    saved = 2 * (WIDTH + 1) * (WIDTH // HEADS - 3)
    assert sum(p.numel() for p in full.parameters()) - sum(p.numel() for p in mixer.parameters()) == saved


@pytest.mark.parametrize("own", [{"rank": 0}, {"window": -1}, {"low_rank_heads": 3}, {"low_rank_heads": -1}])
def test_invalid_options_are_rejected(own):
    with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}={next(iter(own.values()))}"):
        make("lowrank_band", **own)
    with pytest.raises(UserError, match=r"model\.mixer\.kv_heads"):
        make("lowrank_band", kv_heads=1)
