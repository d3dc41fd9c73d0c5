"""Our mixers against other packages (pip install -e '.[peers]'), weights copied, where these are sound oracles."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.models.kernels.linear import linear_attention
from lra_bench.models.kernels.sinkhorn import sinkhorn
from tests.support import mixer_cases
from tests.support.mixer_cases import HEADS, WIDTH, context, make, rows, run

pytestmark = pytest.mark.filterwarnings("ignore")
HEAD_DIM = WIDTH // HEADS
EXACT = 1e-10
SINGLE = 1e-5  # a peer that takes some of its steps in single precision


def peer(name):
    """A module of another package; the test is skipped where it is not installed."""
    return pytest.importorskip(name, reason=f"{name.partition('.')[0]} is not installed: pip install -e '.[peers]'")


def copied(*pairs):
    """Give linear layers of a peer our weights; our biases become zero where it has none."""
    for theirs, ours in pairs:
        theirs.weight.data = ours.weight.data.clone()
        if theirs.bias is None:
            nn.init.zeros_(ours.bias)
        else:
            theirs.bias.data = ours.bias.data.clone()


def stacked(theirs, *ours):
    """Give one linear layer of a peer the weights of several of ours."""
    assert theirs.bias is None
    theirs.weight.data = torch.cat([linear.weight for linear in ours]).detach()
    for linear in ours:
        nn.init.zeros_(linear.bias)


def difference(one, other):
    assert one.shape == other.shape
    return (one - other).abs().max().item()


@pytest.mark.parametrize("causal", [False, True])
def test_performer_has_the_features_of_performer_pytorch(causal):
    package = peer("performer_pytorch.performer_pytorch")
    ours = make("performer", causal=causal, features=32)
    q, k, v = ours.project(rows(2, 50))
    directions = ours.directions.to(q.dtype)
    queries, keys = (
        package.softmax_kernel(x, projection_matrix=directions, is_query=first, eps=0.0)
        for x, first in ((q, True), (k, False))
    )
    if causal:
        theirs = package.causal_linear_attention_noncuda(queries, keys, v, chunk_size=7, eps=0.0)
    else:
        theirs = package.linear_attention(queries, keys, v)
    assert difference(ours.attend(q, k, v, context(50)), theirs) < EXACT


@pytest.mark.parametrize("causal", [False, True])
def test_sums_of_features_are_those_of_performer_pytorch(causal):
    package = peer("performer_pytorch.performer_pytorch")
    q, k, v = (rows(2, 40, seed).unflatten(-1, (HEADS, -1)).transpose(1, 2) for seed in range(3))
    q, k = q.exp(), k.exp()
    theirs = package.causal_linear_attention_noncuda(q, k, v, eps=0.0) if causal else package.linear_attention(q, k, v)
    assert difference(linear_attention(q, k, v, causal=causal), theirs) < EXACT


@pytest.mark.parametrize("length", [64, 50, 3])
@pytest.mark.parametrize("sharing", ["headwise", "key_value"])
def test_linformer(length, sharing):
    ours = make("linformer", rank=8, sharing=sharing, max_length=64)
    theirs = peer("linformer").LinformerSelfAttention(WIDTH, seq_len=64, k=8, heads=HEADS).double()
    copied(
        (theirs.to_q, ours.query),
        (theirs.to_k, ours.key),
        (theirs.to_v, ours.value),
        (theirs.to_out, ours.output),
    )
    theirs.proj_k.data, theirs.proj_v.data = ours.weights[0, 0].T, ours.weights[-1, 0].T
    x = rows(2, length)
    assert difference(run(ours, x), theirs(x)) < EXACT


def rotations(ours, buckets):
    """Our directions of the only round, those in use: (D, buckets / 2)."""
    return ours.directions[0, 0, :, : buckets // 2].double()


def test_reformer(monkeypatch):
    """Of one round: rounds beyond that are one long list to the peer, so that first chunks look into another round."""
    package = peer("reformer_pytorch")
    ours = make("reformer", chunk=8, rounds=1)
    theirs = package.LSHSelfAttention(WIDTH, heads=HEADS, bucket_size=8, n_hashes=1).double()
    copied((theirs.toqk, ours.query), (theirs.tov, ours.value), (theirs.to_out, ours.output))
    drawn = rotations(ours, 8)[None, :, None]
    x = rows(2, 64)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: drawn.reshape(shape))
    assert difference(run(ours, x), theirs(x)) < EXACT


def test_reformer_of_transformers(monkeypatch):
    """It divides no score by the root of D, which a smaller query makes up for, the keys having unit length."""
    package = peer("transformers.models.reformer.modeling_reformer")
    ours = make("reformer", chunk=8, rounds=1)
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
    theirs = package.LSHSelfAttention(config).double()
    copied((theirs.query_key, ours.query), (theirs.value, ours.value))
    theirs.query_key.weight.data = theirs.query_key.weight * HEAD_DIM**-0.5
    drawn = rotations(ours, 8)[None, :, None]
    x = rows(2, 64)
    monkeypatch.setattr(torch, "randn", lambda shape, **_: drawn.expand(shape))
    assert difference(run(ours, x), ours.output(theirs(x).hidden_states)) < 1e2 * SINGLE


@pytest.mark.parametrize("clusters", [1, 4, 8])
def test_routing(clusters):
    """Given our queries and keys, which the peer normalises for its choice alone; it adds 0.00001 to its counts."""
    package = peer("routing_transformer.routing_transformer")
    ours = make("routing", clusters=clusters, local_heads=0)
    theirs = package.KmeansAttention(clusters, 64 // clusters, HEADS, HEAD_DIM).double().eval()
    theirs.kmeans.means.copy_(ours.centroids.means)
    theirs.kmeans.initted.fill_(True)
    q, k, v = ours.project(rows(2, 64))
    assert difference(ours.attend(q, k, v, context(64)), theirs(q, k, v)[0]) < 5 * SINGLE


@pytest.mark.parametrize("iterations", [1, 4, 20])
def test_the_sinkhorn_operator(iterations):
    package = peer("sinkhorn_transformer.sinkhorn_transformer")
    scores = 3 * rows(4, WIDTH)
    everything = torch.ones(WIDTH, WIDTH, dtype=torch.bool)
    theirs = package.sinkhorn_sorting_operator(scores, iterations)
    assert difference(sinkhorn(scores, everything, iterations), theirs) < EXACT


@pytest.mark.parametrize("convolution", [0, 5])
def test_nystrom(convolution, monkeypatch):
    """One row of one head: the peer begins its inverse from the norms of all heads and rows together."""
    package = peer("nystrom_attention")
    monkeypatch.setattr(mixer_cases, "HEADS", 1)
    ours = make("nystrom", landmarks=8, convolution=convolution)
    theirs = package.NystromAttention(
        WIDTH, WIDTH, heads=1, num_landmarks=8, residual=bool(convolution), residual_conv_kernel=convolution or 1
    ).double()
    stacked(theirs.to_qkv, ours.query, ours.key, ours.value)
    copied((theirs.to_out[0], ours.output))
    if convolution:
        theirs.res_conv.weight.data = ours.filters.detach()[:, None, :, None]
    x = rows(1, 64)
    assert difference(run(ours, x), theirs(x)) < EXACT


def test_nystrom_of_transformers(monkeypatch):
    """One row of one head, as above."""
    package = peer("transformers.models.nystromformer.modeling_nystromformer")
    monkeypatch.setattr(mixer_cases, "HEADS", 1)
    ours = make("nystrom", landmarks=8, convolution=5)
    config = package.NystromformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=1,
        num_landmarks=8,
        segment_means_seq_len=64,
        conv_kernel_size=5,
        inv_coeff_init_option=False,
        attention_probs_dropout_prob=0.0,
    )
    theirs = package.NystromformerSelfAttention(config).double()
    copied((theirs.query, ours.query), (theirs.key, ours.key), (theirs.value, ours.value))
    theirs.conv.weight.data = ours.filters.detach()[:, None, :, None]
    x = rows(1, 64)
    assert difference(run(ours, x), ours.output(theirs(x)[0])) < EXACT


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 8, 32, 64])
def test_local(window, causal):
    package = peer("local_attention.transformer")
    ours = make("local", window=window, causal=causal)
    theirs = package.LocalMHA(
        dim=WIDTH,
        window_size=window,
        dim_head=HEAD_DIM,
        heads=HEADS,
        causal=causal,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    ).double()
    stacked(theirs.to_qkv, ours.query, ours.key, ours.value)
    copied((theirs.to_out, ours.output))
    x = rows(2, 64)
    assert difference(run(ours, x), theirs(x)) < EXACT


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_longformer_of_transformers(tokens):
    package = peer("transformers.models.longformer.modeling_longformer")
    ours = make("longformer", window=8, global_tokens=tokens)
    config = package.LongformerConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        attention_window=[16],
        num_hidden_layers=1,
        attention_probs_dropout_prob=0.0,
    )
    theirs = package.LongformerSelfAttention(config, 0).double()
    pairs = [(theirs.query, ours.query), (theirs.key, ours.key), (theirs.value, ours.value)]
    if tokens:
        pairs += [
            (theirs.query_global, ours.global_query),
            (theirs.key_global, ours.global_key),
            (theirs.value_global, ours.global_value),
        ]
    copied(*pairs)
    is_global = (torch.arange(64) < tokens).expand(2, -1)
    x = rows(2, 64)
    expected = theirs(
        x,
        attention_mask=1e4 * is_global.double(),
        is_index_masked=torch.zeros_like(is_global),
        is_index_global_attn=is_global,
        is_global_attn=tokens > 0,
    )[0]
    assert difference(run(ours, x), ours.output(expected)) < SINGLE


def test_bigbird_of_transformers(monkeypatch):
    """With the peer's random blocks, which it draws while training only."""
    package = peer("transformers.models.big_bird.modeling_big_bird")
    ours = make("bigbird", block=4, random_blocks=2)
    config = package.BigBirdConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        block_size=4,
        num_random_blocks=2,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=64,
    )
    theirs = package.BigBirdBlockSparseAttention(config, seed=3).double().train()
    copied((theirs.query, ours.query), (theirs.key, ours.key), (theirs.value, ours.value))

    drawn = []
    plan = theirs._bigbird_block_rand_mask_with_head

    def kept(**options):
        drawn.append(plan(**options))
        return drawn[-1]

    monkeypatch.setattr(theirs, "_bigbird_block_rand_mask_with_head", kept)
    masks = package.BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(2, 64, dtype=torch.float64), 4)
    x = rows(2, 64)
    state = np.random.get_state()
    expected = theirs(x, *masks[1:], masks[0], masks[0])[0]
    np.random.set_state(state)

    random = torch.tensor(np.stack(drawn[0]))
    assert random.shape == (HEADS, 14, 2) and (random[0] != random[1]).any()
    near = ours.table(torch.full((1,), 16), 16)[..., :5]
    table = torch.cat((near, torch.nn.functional.pad(random, (0, 0, 1, 1), value=-1)[None]), -1)
    monkeypatch.setattr(ours, "table", lambda *_: table)
    assert difference(run(ours, x), ours.output(expected)) < EXACT


@pytest.mark.parametrize("length", [1, 7, 64])
def test_fnet_of_transformers(length):
    package = peer("transformers.models.fnet.modeling_fnet")
    x = rows(2, length)
    (theirs,) = package.FNetBasicFourierTransform(package.FNetConfig(hidden_size=WIDTH))(x)
    assert difference(run(make("fnet", norm="backward"), x), theirs) < EXACT


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("key", "attention"), [("gmlp", None), ("amlp", 8)])
def test_gmlp(key, attention, causal):
    package = peer("g_mlp_pytorch.g_mlp_pytorch")
    ours = make(key, hidden=32, max_length=64, causal=causal, **({"attention": attention} if attention else {}))
    theirs = package.gMLPBlock(dim=WIDTH, dim_ff=32, seq_len=64, attn_dim=attention, causal=causal).double()
    gate = theirs.sgu
    pairs = [(theirs.proj_in[0], ours.before), (theirs.proj_out, ours.after), (gate.norm, ours.gate_norm)]
    if attention:
        stacked(theirs.attn.to_qkv, ours.compared)
        pairs += [(theirs.attn.to_out, ours.read)]
    copied(*pairs)
    gate.weight.data, gate.bias.data = ours.weights.detach()[None], ours.bias.detach()[None]
    x = rows(2, 64)
    assert difference(run(ours, x), x + theirs(ours.norm(x))) < EXACT


def test_mlp_mixer():
    package = peer("mlp_mixer_pytorch.mlp_mixer_pytorch")
    ours = make("mlp_mixer", hidden=8, max_length=64)
    theirs = package.FeedForward(64, 8, dense=partial(nn.Conv1d, kernel_size=1)).double()
    theirs[0].weight.data, theirs[0].bias.data = ours.before.detach()[..., None], ours.before_bias.detach()
    theirs[3].weight.data, theirs[3].bias.data = ours.after.detach()[..., None], ours.after_bias.detach()
    x = rows(2, 64)
    assert difference(run(ours, x), theirs(x)) < EXACT
