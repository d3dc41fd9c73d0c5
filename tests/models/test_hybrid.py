"""The option ``backbone.hybrid``: another mixer in every k-th layer."""

import pytest
import torch

from lra_bench.contracts import Batch, Capability, UserError
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.mixer import Mixer
from tests.support.mixer_cases import CASES, NODES
from tests.support.model_cases import batch_for, model, randomise, task

FULL = NODES["transformer"]
ADDS_ROWS = ("bpt", "etc", "global_tokens", "star")


def spec_for(causal, kind="tagging"):
    return task(kind, "causal" if causal else "bidirectional", classes=11 if kind == "language_modeling" else 3)


def hybrid(mixer, causal=True, every=2, other=None, **options):
    options = {"position": "none", "depth": 4, **options}
    return randomise(model(spec_for(causal), mixer, hybrid={"every": every, "mixer": other}, **options))


def close(a, b, tolerance=1e-9):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tolerance


@pytest.mark.parametrize(("every", "replaced"), [(2, [1, 3, 5]), (3, [2, 5]), (6, [5]), (4, [3])])
def test_layers_are_counted_from_one(every, replaced):
    network = hybrid("mamba2", every=every, depth=6)
    assert [layer for layer, mixer in enumerate(network.mixers) if type(mixer) is SoftmaxAttention] == replaced
    assert [mixer.layer for mixer in network.mixers] == list(range(6))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("mixer", "causal"), [case for case in CASES if case != ("bpt", True)])
def test_every_system_with_attention_reads_no_padding_and_no_later_token(mixer, causal):
    network, batch = hybrid(mixer, causal, max_length=24), batch_for(spec_for(causal), (24, 17, 1))
    valid = torch.arange(24) < batch.lengths[:, None]
    logits = network(batch).logits
    assert logits.isfinite().all()
    without = network(Batch(batch.lengths, batch.targets, torch.where(valid, batch.tokens, 3))).logits
    close(logits[valid], without[valid])
    logits.square().sum().backward()
    assert all(parameter.grad.any() for parameter in network.mixers[1].parameters() if parameter.dim() > 1)
    for t in (0, 9, 16) if causal else ():
        changed = torch.where(torch.arange(24) > t, (batch.tokens + 5) % 11, batch.tokens)
        close(logits[:2, : t + 1], network(Batch(batch.lengths, batch.targets, changed)).logits[:2, : t + 1])


def test_a_hybrid_with_its_own_mixer_equals_the_model():
    plain = model(spec_for(True), depth=4)
    same = model(spec_for(True), depth=4, hybrid={"every": 2, "mixer": FULL})
    batch = batch_for(spec_for(True))
    assert torch.equal(plain(batch).logits, same(batch).logits)
    off = model(spec_for(True), depth=4, hybrid={"every": None, "mixer": None})
    assert torch.equal(plain(batch).logits, off(batch).logits)


@pytest.mark.parametrize(
    ("mixer", "options", "message"),
    [
        ("mamba2", {"every": 1}, r"backbone\.hybrid\.every=1: must be at least 2"),
        ("mamba2", {"every": 5}, r"backbone\.hybrid\.every=5: .*at most the number of layers, backbone\.depth=4"),
        *(("local", {"every": 2, "mixer": NODES[name]}, r"backbone\.hybrid\.mixer: \w+ depends") for name in ADDS_ROWS),
        *(
            ("local", {"every": 2, "mixer": NODES[name]}, r"backbone\.hybrid\.mixer: \w+ depends")
            for name in ("luna", "realformer", "rwkv7")
        ),
        ("bpt", {"every": 2}, r"backbone\.hybrid\.mixer: .* adds rows of later tokens"),
        ("mamba2", {"every": 2, "mixer": {**FULL, "typo": 1}}, r"backbone\.hybrid\.mixer\.typo: .*no such option"),
    ],
)
def test_wrong_options_raise_user_error(mixer, options, message):
    with pytest.raises(UserError, match=message):
        model(spec_for(True), mixer, "none", depth=4, hybrid=options)


def test_mixers_that_add_rows_are_refused():
    adding = {name for name, node in NODES.items() if _class(node).prefix_rows is not Mixer.prefix_rows}
    assert adding == set(ADDS_ROWS)


def _class(node):
    from lra_bench.build import load_class

    return load_class(node["_target_"], Mixer, "mixer")


def test_the_direction_of_both_mixers_counts():
    for mixer, other in (("mamba2", "fnet"), ("fnet", "mamba2")):
        network = model(task("tagging", "either"), mixer, "none", hybrid={"every": 2, "mixer": NODES[other]})
        assert network.causal is False and network.capability.causal == "none"
        assert "FNet has no exact causal form" in network.supports(spec_for(True))


def test_a_length_that_one_mixer_does_not_support_is_refused():
    network = model(spec_for(False), "transformer", "none", hybrid={"every": 2, "mixer": NODES["mlp_mixer"]})
    assert network.supports_length(24) is None
    assert "MLPMixer takes at most 24 tokens" in network.supports_length(25)


def test_capabilities_are_those_of_both_mixers():
    one = Capability(
        "a", "A", causal="exact", growth=1.0, memory=True, padding="content", positions=("embed", "rotate")
    )
    two = Capability("b", "B", causal="pseudo", growth=2.0, materialises="rows", positions=("embed", "bias"))
    for both in (one.combined(two), two.combined(one)):
        assert (both.causal, both.growth, both.memory, both.padding) == ("pseudo", 2.0, False, "content")
        assert both.positions == ("embed",) and both.materialises == "rows"
    assert one.combined(two).family == "a" and one.combined(one) == one


def test_memory_needs_that_of_every_layer():
    """Attention passes nothing from batch to batch, so a hybrid with it processes each batch on its own."""
    spec = spec_for(True, "language_modeling")
    batch = batch_for(spec, (24, 24))
    assert model(spec, "mamba2", "none", hybrid={"every": 2})(batch).memory is None
    network = randomise(model(spec, "mamba2", "none", hybrid={"every": 2, "mixer": NODES["lstm"]}))
    parts = [Batch(torch.tensor([12, 12]), batch.targets[:, a:b], batch.tokens[:, a:b]) for a, b in ((0, 12), (12, 24))]
    start = network(parts[0])
    joined = torch.cat((start.logits, network(parts[1], start.memory).logits), 1)
    close(joined, network(batch).logits)


def test_reversible_blocks_need_two_mixers_that_support_them():
    with pytest.raises(UserError, match=r"backbone\.reversible=true: GatedMLP replaces the whole block"):
        model(spec_for(True), reversible=True, hybrid={"every": 2, "mixer": NODES["gmlp"]})


def test_a_hook_that_one_mixer_does_not_support_is_refused():
    with pytest.raises(UserError, match="FNet does not support its rotate hook"):
        model(spec_for(False), position="rope", hybrid={"every": 2, "mixer": NODES["fnet"]})
