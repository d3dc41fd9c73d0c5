"""Heads whose size is not the width divided by their number."""

import pytest
import torch

from lra_bench.models.full.softmax_attention import SoftmaxAttention
from tests.support.mixer_cases import WIDTH, rows, run
from tests.support.model_cases import batch_for, model, node_file, task


def test_every_head_has_the_size_of_the_model_file():
    file = node_file("model", "fixed_head_size")
    network = model(task(), "fixed_head_size", **file["backbone"])
    assert file["backbone"] == {"head_dim": 128}
    for mixer in network.mixers:
        assert mixer.head_dim == 128 and mixer.query.weight.shape == (2 * 128, WIDTH)
    assert network(batch_for(task())).logits.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_default_size_given_explicitly_changes_nothing(causal):
    torch.manual_seed(0)
    explicit = SoftmaxAttention(WIDTH, 2, head_dim=WIDTH // 2, causal=causal)
    torch.manual_seed(0)
    plain = SoftmaxAttention(WIDTH, 2, causal=causal)
    x = rows(2, 20, dtype=torch.float32)
    assert torch.equal(run(explicit, x), run(plain, x))


@pytest.mark.parametrize(("head_dim", "expressed"), [(12, True), (2, False)])
def test_a_head_of_width_n_expresses_any_attention_over_n_tokens(head_dim, expressed):
    """Scores of rank D fit any attention weights over N tokens if D is N, and not if D is much smaller."""
    n, generator = 12, torch.Generator().manual_seed(0)
    target = torch.randn(n, n, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    torch.manual_seed(0)
    mixer = SoftmaxAttention(n, 1, head_dim=head_dim).double()
    x = torch.eye(n, dtype=torch.float64)[None]
    optimizer = torch.optim.Adam([mixer.query.weight, mixer.key.weight], 0.05)
    for _ in range(400):
        q, k, _ = mixer.project(x)
        scores = q @ k.mT * head_dim**-0.5
        loss = (target * (target.log() - scores.log_softmax(-1))).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (loss.item() < 1e-3) is expressed
