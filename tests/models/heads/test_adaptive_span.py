"""Learned spans: masks, gradients, windows and penalty."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.heads.adaptive_span import AdaptiveSpan
from lra_bench.models.heads.dynamic_span import DynamicSpan
from lra_bench.models.kernels import patterns
from tests.support.mixer_cases import HEADS, WIDTH, context, make, rows, run
from tests.support.model_cases import batch_for, model, task

BOTH = pytest.mark.parametrize("name", ["adaptive_span", "adaptive_span_dynamic"])
DIRECTIONS = pytest.mark.parametrize("causal", [False, True])


def with_spans(mixer, *spans):
    """Return the mixer with these spans of its heads."""
    share = torch.tensor(spans, dtype=torch.float64) / mixer.span
    if isinstance(mixer, AdaptiveSpan):
        mixer.share.data = share
    else:
        mixer.share.weight.data.zero_()
        mixer.share.bias.data = share.logit()
    return mixer


@BOTH
@DIRECTIONS
def test_span_of_the_whole_sequence_equals_attention(name, causal):
    mixer = with_spans(make(name, causal=causal, span=1000), 90, 200)
    full, x = make("transformer", causal=causal), rows(2, 90)
    full.load_state_dict(mixer.state_dict(), strict=False)
    assert (run(mixer, x, [90, 41])[0] - run(full, x, [90, 41])[0]).abs().max() < 1e-12


@DIRECTIONS
@pytest.mark.parametrize("spans", [(0, 3), (7.5, 11)])
def test_constant_dynamic_spans_equal_static_spans(causal, spans):
    """If the linear map of the tokens is constant, outputs and gradients of the spans are equal."""
    spans = tuple(max(span, 1e-9) for span in spans)
    static, dynamic = (
        with_spans(make(name, causal=causal), *spans) for name in ("adaptive_span", "adaptive_span_dynamic")
    )
    dynamic.load_state_dict({**dynamic.state_dict(), **{k: v for k, v in static.state_dict().items() if k != "share"}})
    x, gradients = rows(2, 90), []
    for mixer, share in ((static, static.share), (dynamic, dynamic.share.bias)):
        y = run(mixer, x, [90, 41])
        gradients.append(torch.autograd.grad(y[0].square().sum() + y[1, :41].square().sum(), share)[0])
    assert (run(static, x) - run(dynamic, x)).abs().max() < 1e-12
    by_share = gradients[1] / (static.share * (1 - static.share))
    assert (gradients[0] - by_share)[1:].abs().max() < 1e-9


@BOTH
@DIRECTIONS
def test_receptive_field_is_the_span_and_the_ramp(name, causal):
    mixer = with_spans(make(name, causal=causal, span=100, ramp=4), 3, 21.5)
    q, k, v = mixer.project(rows(1, 90))
    v = v.detach().requires_grad_()
    for head, last in enumerate((6, 25)):
        o = mixer.within(mixer.spans(rows(1, 90)), q, k, v, context(90))
        (gradient,) = torch.autograd.grad(o[0, head, 45].sum(), v)
        visible = (gradient[0].abs().sum(-1) > 0).nonzero().tolist()
        assert visible == [[head, at] for at in range(45 - last, 46 if causal else 46 + last)]


def test_gradient_of_the_span_equals_finite_differences():
    mixer, x, step = with_spans(make("adaptive_span"), 5.3, 9.6), rows(1, 60), 1e-6
    (gradient,) = torch.autograd.grad(run(mixer, x).square().sum(), mixer.share)
    for head in range(HEADS):
        ends = []
        for sign in (1, -1):
            mixer.share.data[head] += sign * step
            ends.append(run(mixer, x).square().sum().item())
            mixer.share.data[head] -= sign * step
        assert gradient[head].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)


@BOTH
def test_window_follows_the_largest_span(name, monkeypatch):
    windows = []

    def recorded(*arguments, window, **options):
        windows.append(window)
        return patterns.within_window(*arguments, window=window, **options)

    monkeypatch.setattr("lra_bench.models.heads.adaptive_span.within_window", recorded)
    mixer, x = make(name, span=1000, ramp=32), rows(1, 400)
    for longest in (0.5, 30, 200):
        run(with_spans(mixer, longest, 0.1), x)
    assert windows == [48, 64, 240]


@BOTH
def test_penalty_is_proportional_to_the_mean_span_without_padding(name):
    mixer, x = make(name, penalty=0.5), rows(2, 30)
    where = context(30, [30, 4])
    assert not mixer(x, where)[1].losses
    loss = mixer.train()(x, where)[1].losses["span"]
    spans = mixer.spans(x)
    expected = spans.mean() if spans.dim() == 1 else (spans[0].mean() + spans[1, :, :4].mean()) / 2
    assert loss.item() == pytest.approx(0.5 * expected.item())
    loss.backward()
    share = mixer.share if name == "adaptive_span" else mixer.share.bias
    assert share.grad[share > 0].min() > 0


def test_spans_are_clamped():
    mixer = make("adaptive_span")
    mixer.share.data = torch.tensor([-0.2, 1.7], dtype=torch.float64)
    with torch.no_grad():
        mixer.after_step(0, {})
    assert mixer.share.tolist() == [0, 1]
    assert run(with_spans(mixer, -3, 0), rows(1, 20)).isfinite().all()


@pytest.mark.parametrize("kind", [AdaptiveSpan, DynamicSpan])
def test_is_initialised_at_the_initial_span(kind):
    spans = kind(WIDTH, HEADS).spans(torch.randn(1, 5, WIDTH))
    assert (spans - 32).abs().max() < 1e-3


@BOTH
def test_loss_is_part_of_the_output_of_a_model(name):
    network = model(task(), name).train()
    assert network(batch_for(task())).losses["span"] > 0
    assert not network.eval()(batch_for(task())).losses


@BOTH
def test_invalid_options_are_rejected(name):
    for own, message in (
        ({"span": 0}, "span=0"),
        ({"ramp": 0}, "ramp=0"),
        ({"penalty": -1}, "penalty=-1"),
        ({"initial_span": 25}, "initial_span=25"),
        ({"initial_span": -1}, "initial_span=-1"),
    ):
        with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
            make(name, **own)
    with pytest.raises(UserError, match=r"model\.mixer\.initial_span=0: a sigmoid"):
        make("adaptive_span_dynamic", initial_span=0)
