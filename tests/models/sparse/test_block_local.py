"""Block-local attention: no information crosses block borders."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import make, rows, run


@pytest.mark.parametrize("causal", [False, True])
def test_output_does_not_depend_on_other_blocks(causal):
    mixer, x = make("block_local", causal=causal, block=8), rows(2, 45)
    for block in range(6):
        inside = slice(8 * block, min(8 * block + 8, 45))
        changed = rows(2, 45, seed=1)
        changed[:, inside] = x[:, inside]
        assert (run(mixer, changed) - run(mixer, x))[:, inside].abs().max() < 1e-12


def test_permuting_blocks_permutes_the_output():
    mixer, x = make("block_local", block=8), rows(2, 48)
    order = torch.arange(48).view(6, 8)[[3, 1, 5, 0, 2, 4]].flatten()
    assert (run(mixer, x[:, order]) - run(mixer, x)[:, order]).abs().max() < 1e-12


def test_all_tokens_of_a_block_are_visible():
    mixer, x = make("block_local", block=8), rows(1, 24)
    jacobian = torch.autograd.functional.jacobian(lambda x: run(mixer, x).sum(-1)[0], x)[:, 0].norm(dim=-1)
    block = torch.arange(24) // 8
    assert torch.equal(jacobian > 0, block[:, None] == block)


def test_blocks_of_one_return_the_values():
    mixer, x = make("block_local", block=1), rows(2, 30)
    _, _, v = mixer.project(x)
    assert (run(mixer, x) - mixer.merge(v)).abs().max() < 1e-12


def test_block_of_zero_is_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.block=0"):
        make("block_local", block=0)
