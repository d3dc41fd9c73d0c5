"""The length at which mixers begin to restrict attention: equal to unrestricted attention below it, and not at it."""

import pytest
import torch

from lra_bench.build import build
from lra_bench.models.kernels.tree import edges, span_counts
from lra_bench.models.mixer import Mixer
from tests.support.mixer_cases import CASES, NODES, SPECS, first_direction, make, rows, run

LARGE = 64  # above all tested lengths
RELAXED = {
    "adaptive_span": {"ramp": 10**15},
    "adaptive_span_dynamic": {"ramp": 10**15},
    "axial": {"columns": LARGE},
    "bigbird": {"block": LARGE},
    "block_local": {"block": LARGE},
    "blockwise": {"block": LARGE},
    "clustered": {"clusters": LARGE},
    "clustered_improved": {"clusters": LARGE},
    "compressive": {"segment": LARGE},
    "csalr": {"landmarks": LARGE},
    "dilated": {"window": LARGE, "dilation": 1},
    "etc": {"window": LARGE},
    "h_transformer_1d": {"block": LARGE},
    "image_local_1d": {"block": LARGE},
    "image_local_2d": {"block": LARGE},
    "informer": {"factor": LARGE},
    "local": {"window": LARGE},
    "longformer": {"window": LARGE},
    "lowrank_band": {"window": LARGE},
    "mega_chunk": {"chunk": LARGE},
    "multiscale": {"scales": (LARGE,)},
    "native_sparse": {"window": LARGE, "selected": LARGE},
    "nystrom": {"landmarks": LARGE},
    "poolingformer": {"window": LARGE},
    "random": {"block": LARGE},
    "reformer": {"chunk": LARGE},
    "sinkhorn": {"block": LARGE},
    "sinkhorn_bilinear": {"block": LARGE},
    "sortcut": {"block": LARGE},
    "sparse_fixed": {"stride": LARGE},
    "sparse_strided": {"stride": LARGE, "combine": "merged"},
    "memorizing": {"segment": LARGE},
    "transformer_xl": {"segment": LARGE},
}
"""Options that remove the restriction of the small mixers."""
RANKS = ("csalr", "linformer", "luna")
"""Mixers in which the output of a head is a weighted sum of a fixed number of vectors."""
DEFAULTS = {
    "adaptive_span": 34, "adaptive_span_dynamic": 34, "axial": 33, "bigbird": 113, "block_local": 129, "blockwise": 129,
    "bpt": 11, "clustered": 101, "clustered_improved": 101, "csalr": 65, "dilated": 2, "etc": 50, "global_tokens": 2,
    "h_transformer_1d": 33, "image_local_1d": 65, "image_local_2d": 9, "informer": 76, "isab": 33, "linformer": 129,
    "local": 66, "longformer": 67, "lowrank_band": 66, "luna": 129, "mega_chunk": 129, "memory_compressed": 2,
    "multiscale": 34, "native_sparse": 130, "nystrom": 65, "poolingformer": 34, "random": 129, "reformer": 129,
    "routing": 2, "sac": 2, "sinkhorn": 33, "sinkhorn_bilinear": 33, "sortcut": 65, "sparse_fixed": 33,
    "sparse_strided": 2, "star": 4, "transformer_xl": 513, "compressive": 513, "memorizing": 513,
}  # fmt: skip
"""Results with default options, a maximal length of 1,024 and two heads; for all other mixers 0 or None."""


def differs(name: str, causal: bool, length: int) -> bool:
    """Return whether the output of a small mixer differs from the one without restriction, for some input."""
    limited, relaxed = (
        make(name, causal=causal, weights=None if "span" in name else 1, **options) for options in ({}, RELAXED[name])
    )
    own, shapes = limited.state_dict(), {key: tensor.shape for key, tensor in relaxed.state_dict().items()}
    relaxed.load_state_dict({key: own[key] for key in own if shapes.get(key) == own[key].shape}, strict=False)
    inputs = [rows(2, length, seed) for seed in range(4)]
    return any((run(limited, x) - run(relaxed, x)).abs().max() > 1e-6 for x in inputs)


@pytest.mark.parametrize(("name", "causal"), [case for case in CASES if case[0] in RELAXED])
def test_mixer_is_unrestricted_below_the_length_and_restricted_at_it(name, causal):
    mixer = make(name, causal=causal, weights=None if "span" in name else 1)
    first = mixer.restricts_from()
    assert not differs(name, causal, first - 1)
    assert differs(name, causal, first)


@pytest.mark.parametrize("name", RANKS)
def test_outputs_of_a_head_have_full_rank_below_the_length_only(name):
    mixer = make(name)
    mixer.output = torch.nn.Identity()
    first = mixer.restricts_from()
    assert first <= mixer.head_dim
    for length in (first - 1, first):
        head = run(mixer, rows(1, length))[0, :, : mixer.head_dim]
        assert torch.linalg.matrix_rank(head, rtol=1e-10) == first - 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_spans_of_several_tokens_are_read_from_the_length_on(neighbours, causal):
    first = make("bpt", causal=causal, neighbours=neighbours).restricts_from()
    assert longest_span(first - 1, neighbours, causal) == 1
    assert longest_span(first, neighbours, causal) > 1


def longest_span(length: int, neighbours: int, causal: bool) -> int:
    """Return the largest number of tokens in a span that a token reads."""
    table = edges(length, neighbours, 6, causal, torch.device("cpu"))
    spans = [(index << level, 1 << level) for level, n in enumerate(span_counts(length), 1) for index in range(n)]
    sizes = [min(size, length - start) for start, size in spans] + [1] * length
    return max(sizes[node] for node in table.rows[:, None].expand_as(table.seen)[table.seen].tolist())


@pytest.mark.parametrize("name", NODES)
def test_length_with_default_options(name):
    mixer = build(NODES[name], Mixer, "mixer", width=64, heads=2, max_length=1024, causal=first_direction(name))
    first = mixer.restricts_from()
    if first:
        assert first == DEFAULTS[name]
    else:
        assert name not in DEFAULTS
        not_attention = SPECS[name].family in ("attention_free", "convolution", "linear", "recurrent", "state_space")
        static = name in ("average_attention", "hardcoded_gaussian") or name.startswith("synthesizer")
        assert (first == 0) == ((not_attention or static) and name not in ("amlp", "mega"))


SPARSE = ("entmax15", "relu_attention")
"""Mixers that may attend to every visible token, and whose scores determine which of them have a weight of zero."""
UNRESTRICTED = [
    case for case in CASES if case[0] not in SPARSE and make(case[0], causal=case[1]).restricts_from() is None
]


@pytest.mark.parametrize(("name", "causal"), UNRESTRICTED)
def test_unrestricted_mixers_read_all_visible_tokens(name, causal):
    mixer, length = make(name, causal=causal), 24
    x = rows(1, length)
    jacobian = torch.autograd.functional.jacobian(lambda inputs: run(mixer, inputs)[0].sum(-1), x)[:, 0].norm(dim=-1)
    visible = torch.ones(length, length, dtype=torch.bool)
    assert (jacobian[visible.tril() if causal else visible] > 0).all()
