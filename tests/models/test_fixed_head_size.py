"""Heads whose size is not the width over their number."""

import pytest
import torch

from lra_bench.models.full.softmax_attention import SoftmaxAttention
from tests.support.mixer_cases import WIDTH, rows, run
from tests.support.model_cases import batch_for, model, node_file, task


def test_every_head_has_the_size_of_the_file():
    file = node_file("model", "fixed_head_size")
    network = model(task(), "fixed_head_size", **file["backbone"])
    assert file["backbone"] == {"head_dim": 128}
    for mixer in network.mixers:
        assert mixer.head_dim == 128 and mixer.query.weight.shape == (2 * 128, WIDTH)
    assert network(batch_for(task())).logits.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_size_that_all_have_is_attention_as_always(causal):
    torch.manual_seed(0)
    given = SoftmaxAttention(WIDTH, 2, head_dim=WIDTH // 2, causal=causal)
    torch.manual_seed(0)
    plain = SoftmaxAttention(WIDTH, 2, causal=causal)
    x = rows(2, 20, dtype=torch.float32)
    assert torch.equal(run(given, x), run(plain, x))


@pytest.mark.parametrize(("head_dim", "expressed"), [(12, True), (2, False)])
def test_a_head_as_wide_as_the_row_expresses_any_attention(head_dim, expressed):
    """Scores of rank D fit any rows of weights of N tokens where D is N, and not where it is much less."""
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
