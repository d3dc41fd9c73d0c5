"""Whole networks under the protocols small and lra, compared with those of the code that the protocols follow."""

import math

import pytest
import torch
import torch.nn.functional as F

from lra_bench.config.compose import compose
from lra_bench.config.objects import build_model
from lra_bench.contracts import TaskSpec
from tests.support.model_cases import batch_for, randomise

LENGTHS = [40, 23, 7]
CLASSIFICATION = TaskSpec("toy", "1", "classification", "bidirectional", 10, 40, vocabulary_size=17)
MATCHING = TaskSpec("toy", "1", "matching", "bidirectional", 2, 40, vocabulary_size=17)


@pytest.fixture(scope="module")
def composed():
    """Return a function that composes a Transformer under a protocol and task."""
    yield (
        lambda protocol, task, *more: (
            compose([f"protocol={protocol}", f"task={task}", "model=transformer", "hardware=cpu", *more]).config
        )
    )


def encode(network, tokens, valid, *, gelu, cls=None):
    """Return the hidden states of a pre-norm Transformer with the weights of ``network``, one operation at a time."""
    x = network.embedding.weight[tokens]
    length, width = x.shape[1:]
    if network.position.name == "learned":
        x = x + network.position.table.weight[:length]
    else:
        angles = torch.arange(length).double()[:, None] * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
        x = x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    if cls is not None:
        x = torch.cat((cls.expand(len(x), 1, -1), x), 1)
        valid = torch.cat((valid[:, :1], valid), 1)
    for block in network.blocks:
        mixer, (first, _, _, second) = block.mixer, block.feed_forward
        y = F.layer_norm(x, [width], block.mixer_norm.weight, block.mixer_norm.bias, 1e-5)
        q, k, v = (
            layer(y).unflatten(-1, (mixer.heads, -1)).transpose(1, 2) for layer in (mixer.query, mixer.key, mixer.value)
        )
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~valid[:, None, None], -torch.inf)
        x = x + mixer.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        norm = block.feed_forward_norm
        x = x + second(gelu(first(F.layer_norm(x, [width], norm.weight, norm.bias, 1e-5))))
    return F.layer_norm(x, [width], network.norm.weight, network.norm.bias, 1e-5)


def made(config, spec):
    """Return the network of a configuration with noise on all weights, in double precision, and a batch."""
    torch.manual_seed(0)
    network = randomise(build_model(config, spec), deviation=0.1).double().eval()
    lengths = LENGTHS if spec.kind == "classification" else list(zip(LENGTHS, LENGTHS[::-1], strict=True))
    batch = batch_for(spec, lengths)
    return network, batch, torch.arange(batch.width) < batch.lengths[..., None]


@pytest.mark.agrees("transformer", compared="the whole network under protocol=small position=learned", within=1e-10)
def test_small_is_the_network_of_xiong_et_al(composed, within):
    """Compare with LRA/code/model.py and model_wrapper.py; the mean is taken over real tokens, as the recipe says."""
    config = composed("small", "listops", "position=learned")
    network, batch, valid = made(config, CLASSIFICATION)
    hidden = encode(network, batch.tokens, valid, gelu=F.gelu)
    pooled = (hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
    first, *_, second = network.head.layers
    assert (network(batch).logits - second(first(pooled).relu())).abs().max() <= within
    assert all(layer.bias is not None for layer in (network.mixers[0].query, network.mixers[0].output))


@pytest.mark.agrees(
    "transformer", compared="the whole network under protocol=small position=learned, pairs of documents", within=1e-10
)
def test_small_combines_documents_as_xiong_et_al(composed, within):
    network, batch, valid = made(composed("small", "retrieval", "position=learned"), MATCHING)
    hidden = encode(network, batch.tokens.flatten(0, 1), valid.flatten(0, 1), gelu=F.gelu).unflatten(0, (-1, 2))
    a, b = ((hidden * valid[..., None]).sum(2) / valid.sum(2, keepdim=True)).unbind(1)
    first, *_, second = network.head.layers
    expected = second(first(torch.cat((a, b, a * b, a - b), -1)).relu())
    assert (network(batch).logits - expected).abs().max() <= within


@pytest.mark.agrees("transformer", compared="the whole network under protocol=lra", within=1e-10)
def test_lra_is_the_network_of_tay_et_al(composed, within):
    """Compare with models/transformer/transformer.py; here the CLS vector has no position, as the recipe says."""
    config = composed("lra_released", "listops")
    config.backbone.depth, config.backbone.width, config.backbone.ff_width = 2, 64, 96
    network, batch, valid = made(config, CLASSIFICATION)
    hidden = encode(network, batch.tokens, valid, gelu=lambda x: F.gelu(x, approximate="tanh"), cls=network.cls)
    first, *_, second = network.head.layers
    assert (network(batch).logits - second(first(hidden[:, 0]).relu())).abs().max() <= within
    assert all(getattr(network.mixers[0], name).bias is None for name in ("query", "key", "value", "output"))


@pytest.mark.agrees("transformer", compared="the whole network under protocol=lra, pairs of documents", within=1e-10)
def test_lra_combines_documents_as_tay_et_al(composed, within):
    """Compare with classifier_head_dual: the first byte of each document, two hidden layers, without interactions."""
    network, batch, valid = made(composed("lra", "retrieval"), MATCHING)
    hidden = encode(
        network,
        batch.tokens.flatten(0, 1),
        valid.flatten(0, 1),
        gelu=lambda x: F.gelu(x, approximate="tanh"),
    ).unflatten(0, (-1, 2))
    first, _, _, second, _, _, third = network.head.layers
    expected = third(second(first(hidden[:, :, 0].flatten(1)).relu()).relu())
    assert (network(batch).logits - expected).abs().max() <= within


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("protocol", "task", "embeddings", "positions"),
    [("small", "image", 0.02, 0.02), ("lra", "image", 1.0, 0.02), ("lra", "text", 1.0, 1.0)],
)
def test_initial_values_are_those_of_the_code(composed, protocol, task, embeddings, positions):
    config = composed(protocol, task, *(["position=learned"] if protocol == "small" else []))
    config.backbone.max_length = 1000
    network = build_model(config, CLASSIFICATION)
    assert network.embedding.weight.std().item() == pytest.approx(embeddings, rel=0.1)
    if network.position.name == "learned":
        assert network.position.table.weight.std().item() == pytest.approx(positions, rel=0.1)
    else:
        assert network.position.scale == positions
    assert network.cls is None or network.cls.abs().max() == 0
    largest = network.mixers[0].query.weight.abs().max().item()
    width = config.backbone.width
    bound = width**-0.5 if protocol == "small" else (6 / (width + network.mixers[0].query.out_features)) ** 0.5
    assert largest == pytest.approx(bound, rel=0.01)
