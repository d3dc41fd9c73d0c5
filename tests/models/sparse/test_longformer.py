"""Longformer: windows, dilations and global tokens in one softmax."""

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.mixer import Padding
from lra_bench.models.prefix import with_prefix
from lra_bench.models.sparse.longformer import Longformer
from tests.support.mixer_cases import HEADS, WIDTH, context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, model, task
from tests.support.storage import exponents

either_way = pytest.mark.parametrize("causal", [False, True])


@either_way
@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("dilation", [1, 3, [1, 4]])
@pytest.mark.parametrize("n", [5, 40, 61, 130])
def test_output_matches_the_definition(causal, count, dilation, n):
    mixer = make("longformer", causal=causal, window=3, dilation=dilation, global_tokens=count)
    x, lengths = rows(3, n), [n, n // 2, 2]
    zero = Padding.from_lengths(torch.tensor(lengths), n).zero
    assert (run(mixer, x) - dense_output(mixer, x)[0]).abs().max() < 1e-12
    assert zero(run(mixer, x, lengths) - dense_output(mixer, x, lengths)[0]).abs().max() < 1e-12


def test_heads_can_share_keys():
    for dilation in (1, 2):
        mixer, x = make("longformer", kv_heads=1, dilation=dilation), rows(2, 61)
        assert (run(mixer, x, [61, 30]) - dense_output(mixer, x, [61, 30])[0])[0].abs().max() < 1e-12


def test_without_global_tokens_equals_local_attention():
    mixer, local, x = make("longformer", window=5, global_tokens=0), make("local", window=5), rows(2, 90)
    local.load_state_dict(mixer.state_dict())
    assert (run(mixer, x) - run(local, x)).abs().max() < 1e-12


def test_only_global_tokens_are_full_attention_with_their_projections():
    mixer, full, x = make("longformer", global_tokens=90), make("transformer"), rows(2, 61)
    own = {key: value for key, value in mixer.state_dict().items() if not key.startswith("global")}
    for part in ("query", "key", "value"):
        own |= {f"{part}.{key}": value for key, value in getattr(mixer, f"global_{part}").state_dict().items()}
    full.load_state_dict(own)
    assert (run(mixer, x) - run(full, x)).abs().max() < 1e-12


def test_two_layers_connect_all_tokens_through_the_global_token():
    mixer, x = make("longformer", window=2, global_tokens=1), rows(1, 60)
    once, twice = (
        torch.autograd.functional.jacobian(lambda x, f=f: f(x).sum(-1)[0], x)[:, 0].norm(dim=-1) > 0
        for f in (lambda x: run(mixer, x), lambda x: run(mixer, run(mixer, x)))
    )
    offset = torch.arange(60)[:, None] - torch.arange(60)
    assert torch.equal(once[1:, 1:], (offset.abs() <= 2)[1:, 1:])
    assert once[0].all() and once[:, 0].all() and twice.all()


def test_cls_row_is_global():
    spec = task(length=80)
    network = model(spec, "longformer", pooling="cls", depth=1, own={"window": 2})
    batch = batch_for(spec, lengths=(80, 60))
    inputs = network.embedding(batch.inputs).detach().requires_grad_()
    x, prefix_context = with_prefix(
        inputs,
        context(80, [80, 60]).replace(positions=torch.arange(80), train_length=80),
        torch.tensor([80, 60]),
        network.mixers[0],
        network.cls,
    )
    y, _ = network.blocks[0](x, prefix_context)
    (gradient,) = torch.autograd.grad(y[:, 0].square().sum(), inputs)
    assert (gradient.norm(dim=-1) > 0).sum(1).tolist() == [80, 60]


def test_windows_differ_by_layer():
    mixers = [
        Longformer(WIDTH, HEADS, layer=layer, depth=3, window=[2, 4, 8], dilation=[1, 2], global_tokens=1)
        for layer in range(3)
    ]
    assert [mixer.window for mixer in mixers] == [2, 4, 8]


def test_causal_model_has_no_global_tokens_by_default():
    counts = [Longformer(WIDTH, HEADS, causal=causal).global_tokens for causal in (False, True)]
    assert counts == [1, 0]


@either_way
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_memory_is_linear_with_dilated_heads(causal, dropout):
    mixer = make("longformer", causal=causal, dilation=[1, 3], dropout=dropout, dtype=torch.float32).train()
    found, _ = exponents(
        lambda n: run(mixer, rows(2, n, dtype=torch.float32).requires_grad_(), [n, n // 2]), (512, 1024, 2048, 4096)
    )
    assert max(found) <= 1.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "window=-1"),
        ({"window": [1, 2]}, r"window=\[1, 2\]"),
        ({"dilation": 0}, "dilation=0"),
        ({"dilation": [1, 2, 3]}, r"dilation=\[1, 2, 3\]"),
        ({"global_tokens": -1}, "global_tokens=-1"),
        ({"dilation": [1, 2], "kv_heads": 1}, "kv_heads"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=rf"model\.mixer\.{message}"):
        make("longformer", **options)
