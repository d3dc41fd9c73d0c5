"""Sparse Transformer: definitions of all combinations of patterns, connectivity and memory."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import context, dense_output, make, rows, run
from tests.support.storage import exponents

SYSTEMS = ["sparse_fixed", "sparse_strided"]
every_system = pytest.mark.parametrize("name", SYSTEMS)
either_way = pytest.mark.parametrize("causal", [False, True])
COMBINATIONS = [{"combine": "merged"}, {"combine": "heads"}, {"combine": "interleave"}]


def layer(name, number, **options):
    mixer = make(name, **options)
    mixer.layer = number
    return mixer


def pattern(mixer, n):
    """Return a mask (H, N, N) of the tokens that each head attends to."""
    return dense_output(mixer, rows(1, n))[1][0] > 0


@every_system
@either_way
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("options", COMBINATIONS)
@pytest.mark.parametrize("n", [5, 6, 24, 45])
def test_every_combination_matches_its_definition(name, causal, number, options, n):
    mixer = layer(name, number, causal=causal, stride=6, **options)
    x, lengths = rows(2, n), [n, n // 2]
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12
    zero = Padding.from_lengths(torch.tensor(lengths), n).zero
    assert zero(run(mixer, x, lengths) - dense_output(mixer, x, lengths)[0]).abs().max() < 1e-12


@pytest.mark.one_in(4)
@every_system
@either_way
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("options", COMBINATIONS)
def test_memory_exponent_is_three_halves(name, causal, dropout, options):
    """With a stride near the square root of the length, as in the paper."""

    def at(n):
        mixer = layer(name, 1, causal=causal, dropout=dropout, max_length=n, dtype=torch.float32, **options)
        return run(mixer.train(), rows(2, n, dtype=torch.float32).requires_grad_(), [n, n // 2])

    found, _ = exponents(at, (576, 1024, 2304))
    assert max(found) <= 1.6


@every_system
def test_default_stride_is_near_the_root_of_the_maximum_length(name):
    assert [make(name, max_length=n).stride for n in (2, 64, 1024, 2000, 4096)] == [8, 8, 32, 48, 64]
    assert make(name, max_length=4096, stride=17).stride == 17


class TestFixed:
    def test_two_steps_connect_every_earlier_block(self):
        """The two steps use the summary tokens of the block of the earlier token, in any head."""
        mixer, n = make("sparse_fixed", causal=True, stride=8, summary=2), 48
        near = torch.arange(n)[:, None] // 8 == torch.arange(n) // 8
        both = pattern(mixer, n).any(0)
        two = (both.double() @ (near & both).double()) > 0
        before = torch.arange(n) // 8 < torch.arange(n)[:, None] // 8
        # The summary tokens of the last head are the fifth and sixth of a block, so earlier ones reach them.
        assert two[before & (torch.arange(n) % 8 < 4)].all()

    def test_summary_tokens_differ_by_head(self):
        mixer = make("sparse_fixed", stride=8, summary=2)
        q, _, _ = mixer.project(rows(1, 32))
        places = mixer.places(q)
        assert places[0].tolist() == [6, 7, 14, 15, 22, 23, 30, 31]
        assert places[1].tolist() == [4, 5, 12, 13, 20, 21, 28, 29]

    @either_way
    def test_summaries_of_all_tokens_are_full_attention(self, causal):
        mixer, full, x = (
            make("sparse_fixed", causal=causal, stride=6, summary=6),
            make("transformer", causal=causal),
            rows(2, 45),
        )
        full.load_state_dict(mixer.state_dict())
        assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12

    def test_far_pattern_without_visible_summaries_is_zero(self):
        mixer = layer("sparse_fixed", 1, causal=True, stride=8, summary=2, combine="interleave")
        q, k, v = mixer.project(rows(1, 40))
        o = mixer.attend(q, k, v, context(40))
        assert o[:, 0, :6].abs().max() == 0 and o[:, 0, 6:].norm(dim=-1).min() > 0


class TestStrided:
    def test_two_steps_connect_every_earlier_token(self):
        mixer, n = make("sparse_strided", causal=True, stride=6, combine="heads"), 45
        near, far = pattern(mixer, n).double()
        assert torch.equal((far @ near) > 0, torch.ones(n, n, dtype=torch.bool).tril())

    @either_way
    def test_stride_of_one_is_full_attention(self, causal):
        mixer = layer("sparse_strided", 1, causal=causal, stride=1, combine="interleave")
        full, x = make("transformer", causal=causal), rows(2, 33)
        full.load_state_dict(mixer.state_dict())
        assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12

    @either_way
    def test_far_pattern_stays_within_its_residue_class(self, causal):
        mixer = layer("sparse_strided", 1, causal=causal, stride=6, combine="interleave")
        x = rows(1, 45)
        jacobian = torch.autograd.functional.jacobian(lambda x: run(mixer, x).sum(-1)[0], x)[:, 0].norm(dim=-1)
        offset = torch.arange(45)[:, None] - torch.arange(45)
        assert torch.equal(jacobian > 0, (offset % 6 == 0) & (offset >= (0 if causal else -99)))

    def test_dropout_acts_on_the_merged_softmax(self):
        torch.manual_seed(0)
        mixer = make("sparse_strided", stride=6, combine="merged", dropout=0.3)
        q, k, v = mixer.project(rows(1, 45))
        mean = torch.stack([mixer.attend(q, k, torch.ones_like(v), context(45)) for _ in range(200)]).mean(0)
        assert (mean - 1).abs().max() < 0.25 and (mean - 1).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [({"stride": 0}, "stride=0"), ({"combine": "sum"}, "combine=sum"), ({"kv_heads": 1}, "kv_heads")],
)
@every_system
def test_invalid_options_are_rejected(name, options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make(name, **options)


def test_summary_longer_than_the_block_is_rejected():
    with pytest.raises(UserError, match=r"model\.mixer\.summary=9"):
        make("sparse_fixed", stride=8, summary=9)
