"""Poolingformer: the second level with every pooling, its special cases and its receptive field."""

import pytest
import torch

from lra_bench.contracts import UserError
from tests.support.mixer_cases import dense_output, make, rows, run


def with_equal_levels(mixer):
    for name in ("query", "key", "value", "output"):
        getattr(mixer, f"pooled_{name}").load_state_dict(getattr(mixer, name).state_dict())
    return mixer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", "dynamic"])
def test_pooling_of_single_tokens_equals_window_attention(causal, pooling):
    options = {"kernel": 1, "stride": 1, "pooling": pooling, "window": 4, "pooled_window": 9}
    mixer = with_equal_levels(make("poolingformer", causal=causal, **options))
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
    y, reference = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
    assert (y - reference)[0].abs().max() < 1e-11 and (y - reference)[1, :10].abs().max() < 1e-11


def test_mean_pooling_of_an_example():
    mixer = make("poolingformer", pooling="mean", kernel=3, stride=2)
    x = torch.arange(5.0, dtype=torch.float64).view(1, 1, 5, 1)
    taps = mixer._taps(torch.zeros(1, 5, 16, dtype=torch.float64), None)
    assert mixer._pool(x, taps, None).flatten().tolist() == [0.5, 2.0, 3.5]


def test_receptive_field():
    mixer, x = make("poolingformer"), rows(1, 80).requires_grad_()
    (gradient,) = torch.autograd.grad(run(mixer, x)[0, 40].square().sum(), x)
    reached = (gradient[0] != 0).any(-1).nonzero().flatten()
    # Three pooled positions on either side, two taps around each, and the window of the first level.
    assert reached.min() == 40 - 12 - 2 - 3 and reached.max() == 40 + 12 + 2 + 3


@pytest.mark.parametrize(
    "own", [{"window": -1}, {"pooled_window": -1}, {"kernel": 0}, {"stride": 0}, {"pooling": "sum"}]
)
def test_invalid_options_are_rejected(own):
    ((option, value),) = own.items()
    with pytest.raises(UserError, match=rf"model\.mixer\.{option}={value}"):
        make("poolingformer", **own)
