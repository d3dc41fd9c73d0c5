"""Linear Transformer: its recurrent form and its non-negative weights."""

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import UserError
from tests.support.mixer_cases import context, make, rows, run


def test_causal_form_equals_a_recurrence():
    """The causal outputs equal those of one state per head that is updated token by token."""
    mixer, x = make("linear", causal=True), rows(2, 70)
    q, k, v = mixer.project(x)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state, total, outputs = torch.zeros(2, 2, 8, 8, dtype=x.dtype), torch.zeros(2, 2, 8, dtype=x.dtype), []
    for t in range(70):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        total = total + k[:, :, t]
        read = (q[:, :, t, None, :] @ state)[:, :, 0] / (q[:, :, t] * total).sum(-1, keepdim=True)
        outputs.append(read)
    assert (run(mixer, x) - mixer.merge(torch.stack(outputs, 2))).abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_outputs_are_averages_of_values(causal):
    mixer, x = make("linear", causal=causal), rows(2, 40)
    q, k, v = mixer.project(x)
    o = mixer.attend(q, k, v, context(40))
    assert (o <= v.amax(2, keepdim=True) + 1e-12).all() and (o >= v.amin(2, keepdim=True) - 1e-12).all()


def test_equal_keys_have_equal_weights():
    mixer, x = make("linear"), rows(1, 20)
    q, k, v = mixer.project(x)
    o = mixer.attend(q, k[:, :, :1].expand_as(k), v, context(20))
    assert (o - v.mean(2, keepdim=True)).abs().max() < 1e-12


def test_shared_keys_are_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.kv_heads: LinearTransformer"):
        make("linear", kv_heads=1)
