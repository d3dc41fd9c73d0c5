"""Poolingformer: its second level, in every pooling, and what it reduces to."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import dense_output, make, rows, run


def second_level_like_first(mixer):
    for name in ("query", "key", "value", "output"):
        getattr(mixer, f"pooled_{name}").load_state_dict(getattr(mixer, name).state_dict())
    return mixer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "dynamic"])
def test_windows_of_one_token_are_attention_in_a_window(causal, pooling):
    options = {"kernel": 1, "stride": 1, "pooling": pooling, "window": 4, "pooled_window": 9}
    mixer = second_level_like_first(make("poolingformer", causal=causal, **options))
    local, x, lengths = make("local", causal=causal, window=4), rows(2, 50), [50, 23]
    local.load_state_dict({key: mixer.state_dict()[key] for key in local.state_dict()})
    y = run(local, x, lengths)
    local.window = 9
    expected = y + run(local, y, lengths)
    y = run(mixer, x, lengths)
    assert (y - expected)[0].abs().max() < 1e-12 and (y - expected)[1, :23].abs().max() < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "dynamic"])
@pytest.mark.parametrize(("kernel", "stride"), [(5, 4), (4, 4), (3, 1), (2, 5), (1, 3), (9, 2)])
def test_every_pooling_equals_its_definition(causal, pooling, kernel, stride):
    own = {"pooling": pooling, "kernel": kernel, "stride": stride, "kv_heads": 1}
    mixer, x, lengths = make("poolingformer", causal=causal, **own), rows(2, 21), [21, 10]
    y, written = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    assert (y - written)[0].abs().max() < 1e-11 and (y - written)[1, :10].abs().max() < 1e-11


def test_means_by_hand():
    mixer = make("poolingformer", pooling="mean", kernel=3, stride=2)
    x = torch.arange(5.0, dtype=torch.float64).view(1, 1, 5, 1)
    taps = mixer._taps(torch.zeros(1, 5, 16, dtype=torch.float64), None)
    assert mixer._pool(x, taps, None).flatten().tolist() == [0.5, 2.0, 3.5]


def test_far_tokens_are_reached_through_pooled_rows_alone():
    mixer, x = make("poolingformer"), rows(1, 80).requires_grad_()
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, 40].square().sum(), x)
    reached = (gradient[0] != 0).any(-1).nonzero().flatten()
    # Three pooled rows on either side, two taps around each, and what the first level had read by then.
    assert reached.min() == 40 - 12 - 2 - 3 and reached.max() == 40 + 12 + 2 + 3


@pytest.mark.parametrize(
    "own", [{"window": -1}, {"pooled_window": -1}, {"kernel": 0}, {"stride": 0}, {"pooling": "sum"}]
)
def test_bad_options_are_named(own):
    ((option, value),) = own.items()
    with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
        make("poolingformer", **own)
