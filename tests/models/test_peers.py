"""Mixers against other packages of the extra ``peers`` with the same weights."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.contracts import install_command
from lra_bench.models.kernels.linear import linear_attention
from lra_bench.models.kernels.sinkhorn import sinkhorn
from tests.support import mixer_cases
from tests.support.mixer_cases import HEADS, WIDTH, context, make, rows, run

pytestmark = pytest.mark.filterwarnings("ignore")
HEAD_DIM = WIDTH // HEADS


def peer(name):
    """Import a module of another package, or skip the test if it is not installed."""
    return pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed: {install_command('peers')}")


def copy_weights(*pairs):
    """Copy mixer weights to linear layers of a peer; set mixer biases to zero if the peer has none."""
    for target, source in pairs:
        target.weight.data = source.weight.data.clone()
        if target.bias is None:
            nn.init.zeros_(source.bias)
        else:
            target.bias.data = source.bias.data.clone()


def copy_stacked_weights(target, *sources):
    """Copy the weights of several mixer layers into one linear layer of a peer."""
    assert target.bias is None
    target.weight.data = torch.cat([linear.weight for linear in sources]).detach()
    for linear in sources:
        nn.init.zeros_(linear.bias)


def difference(one, other):
    assert one.shape == other.shape
    return (one - other).abs().max().item()


@pytest.mark.agrees("performer", compared="`performer-pytorch`, with the same directions", within=1e-10)
@pytest.mark.parametrize("causal", [False, True])
def test_performer_features_match_performer_pytorch(causal, within):
    package = peer("performer_pytorch.performer_pytorch")
    mixer = make("performer", causal=causal, features=32)
    q, k, v = mixer.project(rows(2, 50))
    directions = mixer.directions.to(q.dtype)
    queries, keys = (
        package.softmax_kernel(x, projection_matrix=directions, is_query=first, eps=0.0)
        for x, first in ((q, True), (k, False))
    )
    if causal:
        reference = package.causal_linear_attention_noncuda(queries, keys, v, chunk_size=7, eps=0.0)
    else:
        reference = package.linear_attention(queries, keys, v)
    assert difference(mixer.attend(q, k, v, context(50)), reference) <= within


@pytest.mark.agrees(
    "linear", "performer", "performer_relu", compared="`performer-pytorch`, sums over keys", within=1e-10
)
@pytest.mark.parametrize("causal", [False, True])
def test_feature_sums_match_performer_pytorch(causal, within):
    package = peer("performer_pytorch.performer_pytorch")
    q, k, v = (rows(2, 40, seed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for seed in range(3))
    q, k = q.exp(), k.exp()
    reference = (
        package.causal_linear_attention_noncuda(q, k, v, eps=0.0) if causal else package.linear_attention(q, k, v)
    )
    assert difference(linear_attention(q, k, v, causal=causal), reference) <= within


@pytest.mark.agrees("linformer", compared="`linformer`", within=1e-10)
@pytest.mark.parametrize("length", [64, 50, 3])
@pytest.mark.parametrize("sharing", ["headwise", "key_value"])
def test_linformer(length, sharing, within):
    mixer = make("linformer", rank=8, sharing=sharing, max_length=64)
    reference = peer("linformer").LinformerSelfAttention(WIDTH, seq_len=64, k=8, heads=HEADS).double()
    copy_weights(
        (reference.to_q, mixer.query),
        (reference.to_k, mixer.key),
        (reference.to_v, mixer.value),
        (reference.to_out, mixer.output),
    )
    reference.proj_k.data, reference.proj_v.data = mixer.weights[0, 0].T, mixer.weights[-1, 0].T
    x = rows(2, length)
    assert difference(run(mixer, x), reference(x)) <= within


def rotations(mixer, buckets):
    """Return the directions (D, buckets / 2) that the mixer uses in its only round."""
    return mixer.directions[0, 0, :, : buckets // 2].double()


@pytest.mark.agrees("reformer", compared="`reformer-pytorch`, one round", within=1e-10)
def test_reformer(monkeypatch, within):
    """One round only: the peer sorts all rounds as one list, so that first chunks attend to another round."""
    package = peer("reformer_pytorch")
    mixer = make("reformer", chunk=8, rounds=1)
    reference = package.LSHSelfAttention(WIDTH, heads=HEADS, bucket_size=8, n_hashes=1).double()
    copy_weights((reference.toqk, mixer.query), (reference.tov, mixer.value), (reference.to_out, mixer.output))
    directions = rotations(mixer, 8)[None, :, None]
    x = rows(2, 64)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: directions.reshape(shape))
    assert difference(run(mixer, x), reference(x)) <= within


@pytest.mark.agrees("reformer", compared="`transformers`, one round, in single precision", within=1e-3)
def test_reformer_of_transformers(monkeypatch, within):
    """The peer does not divide scores by √D; smaller queries compensate for it, because keys have unit length."""
    package = peer("transformers.models.reformer.modeling_reformer")
    mixer = make("reformer", chunk=8, rounds=1)
    config = package.ReformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_head_size=HEAD_DIM,
        lsh_attn_chunk_length=8,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=1,
        num_buckets=8,
        is_decoder=False,
    )
    reference = package.LSHSelfAttention(config).double()
    copy_weights((reference.query_key, mixer.query), (reference.value, mixer.value))
    reference.query_key.weight.data = reference.query_key.weight * HEAD_DIM**-0.5
    directions = rotations(mixer, 8)[None, :, None]
    x = rows(2, 64)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: directions.expand(shape))
    assert difference(run(mixer, x), mixer.output(reference(x).hidden_states)) <= within


@pytest.mark.agrees("routing", compared="`routing-transformer`, with the same centroids", within=5e-5)
@pytest.mark.parametrize("clusters", [1, 4, 8])
def test_routing(clusters, within):
    """Queries and keys are the mixer's; the peer normalises them for the choice only, and adds 1e-5 to its counts."""
    package = peer("routing_transformer.routing_transformer")
    mixer = make("routing", clusters=clusters, local_heads=0)
    reference = package.KmeansAttention(clusters, 64 // clusters, HEADS, HEAD_DIM).double().eval()
    reference.kmeans.means.copy_(mixer.centroids.means)
    reference.kmeans.initted.fill_(True)
    q, k, v = mixer.project(rows(2, 64))
    assert difference(mixer.attend(q, k, v, context(64)), reference(q, k, v)[0]) <= within


@pytest.mark.agrees(
    "sinkhorn", "sinkhorn_bilinear", "sortcut", compared="`sinkhorn-transformer`, normalisation of scores", within=1e-10
)
@pytest.mark.parametrize("iterations", [1, 4, 20])
def test_sinkhorn_operator(iterations, within):
    package = peer("sinkhorn_transformer.sinkhorn_transformer")
    scores = 3 * rows(4, WIDTH)
    no_mask = torch.ones(WIDTH, WIDTH, dtype=torch.bool)
    reference = package.sinkhorn_sorting_operator(scores, iterations)
    assert difference(sinkhorn(scores, no_mask, iterations), reference) <= within


@pytest.mark.agrees("nystrom", compared="`nystrom-attention`, one head", within=1e-10)
@pytest.mark.parametrize("convolution", [0, 5])
def test_nystrom(convolution, monkeypatch, within):
    """One example and one head: the peer initialises its inverse with the norms of all heads and examples together."""
    package = peer("nystrom_attention")
    monkeypatch.setattr(mixer_cases, "HEADS", 1)
    mixer = make("nystrom", landmarks=8, convolution=convolution)
    reference = package.NystromAttention(
        WIDTH, WIDTH, heads=1, num_landmarks=8, residual=bool(convolution), residual_conv_kernel=convolution or 1
    ).double()
    copy_stacked_weights(reference.to_qkv, mixer.query, mixer.key, mixer.value)
    copy_weights((reference.to_out[0], mixer.output))
    if convolution:
        reference.res_conv.weight.data = mixer.filters.detach()[:, None, :, None]
    x = rows(1, 64)
    assert difference(run(mixer, x), reference(x)) <= within


@pytest.mark.agrees("nystrom", compared="`transformers`, one head", within=1e-10)
def test_nystrom_of_transformers(monkeypatch, within):
    """One example and one head, see ``test_nystrom``."""
    package = peer("transformers.models.nystromformer.modeling_nystromformer")
    monkeypatch.setattr(mixer_cases, "HEADS", 1)
    mixer = make("nystrom", landmarks=8, convolution=5)
    config = package.NystromformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=1,
        num_landmarks=8,
        segment_means_seq_len=64,
        conv_kernel_size=5,
        inv_coeff_init_option=False,
        attention_probs_dropout_prob=0.0,
    )
    reference = package.NystromformerSelfAttention(config).double()
    copy_weights((reference.query, mixer.query), (reference.key, mixer.key), (reference.value, mixer.value))
    reference.conv.weight.data = mixer.filters.detach()[:, None, :, None]
    x = rows(1, 64)
    assert difference(run(mixer, x), mixer.output(reference(x)[0])) <= within


@pytest.mark.agrees("local", compared="`local-attention`", within=1e-10)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 8, 32, 64])
def test_local(window, causal, within):
    package = peer("local_attention.transformer")
    mixer = make("local", window=window, causal=causal)
    reference = package.LocalMHA(
        dim=WIDTH,
        window_size=window,
        dim_head=HEAD_DIM,
        heads=HEADS,
        causal=causal,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    ).double()
    copy_stacked_weights(reference.to_qkv, mixer.query, mixer.key, mixer.value)
    copy_weights((reference.to_out, mixer.output))
    x = rows(2, 64)
    assert difference(run(mixer, x), reference(x)) <= within


@pytest.mark.agrees("longformer", compared="`transformers`, in single precision", within=1e-5)
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_longformer_of_transformers(tokens, within):
    package = peer("transformers.models.longformer.modeling_longformer")
    mixer = make("longformer", window=8, global_tokens=tokens)
    config = package.LongformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_window=[16],
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    reference = package.LongformerSelfAttention(config, 0).double()
    pairs = [(reference.query, mixer.query), (reference.key, mixer.key), (reference.value, mixer.value)]
    if tokens:
        pairs += [
            (reference.query_global, mixer.global_query),
            (reference.key_global, mixer.global_key),
            (reference.value_global, mixer.global_value),
        ]
    copy_weights(*pairs)
    is_global = (torch.arange(64) < tokens).expand(2, -1)
    x = rows(2, 64)
    expected = reference(
        x,
        attention_mask=1e4 * is_global.double(),
        is_index_masked=torch.zeros_like(is_global),
        is_index_global_attn=is_global,
        is_global_attn=tokens > 0,
    )[0]
    assert difference(run(mixer, x), mixer.output(expected)) <= within


@pytest.mark.agrees("bigbird", compared="`transformers`, with the same random blocks", within=1e-10)
def test_bigbird_of_transformers(monkeypatch, within):
    """With the peer's random blocks, which it samples in training mode only."""
    package = peer("transformers.models.big_bird.modeling_big_bird")
    mixer = make("bigbird", block=4, random_blocks=2)
    config = package.BigBirdConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        block_size=4,
        num_random_blocks=2,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=64,
    )
    reference = package.BigBirdBlockSparseAttention(config, seed=3).double().train()
    copy_weights((reference.query, mixer.query), (reference.key, mixer.key), (reference.value, mixer.value))

    samples = []
    plan = reference._bigbird_block_rand_mask_with_head

    def recorded(**options):
        samples.append(plan(**options))
        return samples[-1]

    monkeypatch.setattr(reference, "_bigbird_block_rand_mask_with_head", recorded)
    masks = package.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(2, 64, dtype=torch.float64), 4)
    x = rows(2, 64)
    state = np.random.get_state()
    expected = reference(x, *masks[1:], masks[0], masks[0])[0]
    np.random.set_state(state)

    random = torch.tensor(np.stack(samples[0]))
    assert random.shape == (HEADS, 14, 2) and (random[0] != random[1]).any()
    near = mixer.table(torch.full((1,), 16), 16)[..., :5]
    table = torch.cat((near, torch.nn.functional.pad(random, (0, 0, 1, 1), value=-1)[None]), -1)
    monkeypatch.setattr(mixer, "table", lambda *_: table)
    assert difference(run(mixer, x), mixer.output(expected)) <= within


@pytest.mark.agrees("fnet", compared="`transformers`", within=1e-10)
@pytest.mark.parametrize("length", [1, 7, 64])
def test_fnet_of_transformers(length, within):
    package = peer("transformers.models.fnet.modeling_fnet")
    x = rows(2, length)
    (reference,) = package.FNetBasicFourierTransform(package.FNetConfig(hidden_size=WIDTH))(x)
    assert difference(run(make("fnet", norm="backward"), x), reference) <= within


@pytest.mark.agrees("gmlp", "amlp", compared="`g-mlp-pytorch`", within=1e-10)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("key", "attention"), [("gmlp", None), ("amlp", 8)])
def test_gmlp(key, attention, causal, within):
    package = peer("g_mlp_pytorch.g_mlp_pytorch")
    mixer = make(key, hidden=32, max_length=64, causal=causal, **({"attention": attention} if attention else {}))
    reference = package.gMLPBlock(dim=WIDTH, dim_ff=32, seq_len=64, attn_dim=attention, causal=causal).double()
    gate = reference.sgu
    pairs = [(reference.proj_in[0], mixer.before), (reference.proj_out, mixer.after), (gate.norm, mixer.gate_norm)]
    if attention:
        copy_stacked_weights(reference.attn.to_qkv, mixer.compared)
        pairs += [(reference.attn.to_out, mixer.read)]
    copy_weights(*pairs)
    gate.weight.data, gate.bias.data = mixer.weights.detach()[None], mixer.bias.detach()[None]
    x = rows(2, 64)
    assert difference(run(mixer, x), x + reference(mixer.norm(x))) <= within


@pytest.mark.agrees("mlp_mixer", compared="`mlp-mixer-pytorch`", within=1e-10)
def test_mlp_mixer(within):
    package = peer("mlp_mixer_pytorch.mlp_mixer_pytorch")
    mixer = make("mlp_mixer", hidden=8, max_length=64)
    reference = package.FeedForward(64, 8, dense=partial(nn.Conv1d, kernel_size=1)).double()
    reference[0].weight.data, reference[0].bias.data = mixer.before.detach()[..., None], mixer.before_bias.detach()
    reference[3].weight.data, reference[3].bias.data = mixer.after.detach()[..., None], mixer.after_bias.detach()
    x = rows(2, 64)
    assert difference(run(mixer, x), reference(x)) <= within
