"""Embeddings and output heads: factors, clusters by frequency, ties and mixtures of softmaxes."""

import pytest
import torch
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.models.clusters import AdaptiveEmbedding, AdaptiveSoftmax, cluster_sizes, token_ranks
from lra_bench.models.output_heads import MixtureOfSoftmaxes
from lra_bench.models.token_embedding import FactorisedEmbedding
from tests.support.mixer_cases import rows
from tests.support.model_cases import batch_for, model, randomise, task

WIDTH, VOCABULARY = 16, 23
LANGUAGE = task("language_modeling", "causal", classes=11)
ADAPTIVE = {"kind": "adaptive", "cutoffs": [3, 6], "factor": 2, "components": 15}
TABLE = {"rank": None, "cutoffs": None, "factor": 2, "tied": False}


def close(a, b, tolerance=1e-12):
    assert a.shape == b.shape and (a - b).abs().max().item() <= tolerance


@pytest.mark.parametrize("cutoffs", [[1], [4, 10], [1, 2, 22]])
def test_clusters_partition_the_vocabulary(cutoffs):
    sizes = cluster_sizes(VOCABULARY, cutoffs, "cutoffs")
    assert sum(sizes) == VOCABULARY and min(sizes) >= 1 and len(sizes) == len(cutoffs) + 1
    ranks = token_ranks(VOCABULARY, [5, 0, 7])
    assert sorted(ranks.tolist()) == list(range(VOCABULARY))
    assert [ranks[token].item() for token in (5, 0, 7, 1)] == [0, 1, 2, 3]


@pytest.mark.parametrize("cutoffs", [None, [], [0], [3, 3], [5, 4], [VOCABULARY]])
def test_wrong_cutoffs_raise_user_error(cutoffs):
    with pytest.raises(UserError, match=r"option=.*must be one or more increasing numbers from 1 to 22"):
        cluster_sizes(VOCABULARY, cutoffs, "option")


@pytest.mark.parametrize("order", [[1, 1], [VOCABULARY], [-1]])
def test_a_wrong_order_of_tokens_raises_user_error(order):
    with pytest.raises(UserError, match=r"backbone\.token_order: must be different token ids from 0 to 22"):
        token_ranks(VOCABULARY, order)


@pytest.mark.agrees("backbone.output.kind=adaptive", compared="`torch.nn.AdaptiveLogSoftmaxWithLoss`", within=1e-12)
@pytest.mark.parametrize("cutoffs", [[4], [4, 10], [2, 5, 14]])
def test_the_adaptive_softmax_equals_that_of_torch(cutoffs, within):
    head = AdaptiveSoftmax(WIDTH, VOCABULARY, cutoffs, 2).double()
    reference = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, cutoffs, div_value=2.0).double()
    reference.load_state_dict({name: value for name, value in head.state_dict().items() if name != "ranks"})
    x = rows(2, 5)
    close(head(x).flatten(0, 1), reference.log_prob(x.flatten(0, 1)), within)


@pytest.mark.parametrize("factor", [2, None])
def test_adaptive_probabilities_sum_to_one_and_follow_the_order_of_tokens(factor):
    head = AdaptiveSoftmax(WIDTH, VOCABULARY, [4, 10], factor).double()
    x, order = rows(2, 5), [9, 22, 3]
    close(head(x).exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))
    ordered = AdaptiveSoftmax(WIDTH, VOCABULARY, [4, 10], factor, order).double()
    ordered.load_state_dict(head.state_dict())
    tokens = [*order, *(token for token in range(VOCABULARY) if token not in order)]
    close(ordered(x)[..., tokens], head(x))
    close(ordered(x).exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))


def test_one_softmax_of_a_mixture_equals_a_softmax():
    head, x = MixtureOfSoftmaxes(WIDTH, VOCABULARY, 1).double(), rows(2, 5)
    close(head(x), head.classes(head.maps(x).tanh()).log_softmax(-1))


@pytest.mark.agrees("backbone.output.kind=mixture", compared="logarithm of the paper's sum", within=1e-12)
def test_a_mixture_is_a_weighted_sum_of_softmaxes(within):
    torch.manual_seed(0)
    head, x = randomise(MixtureOfSoftmaxes(WIDTH, VOCABULARY, 3).double()), rows(2, 5)
    expected = 0
    shares, states = (x @ head.weights.weight.mT).softmax(-1), head.maps(x).tanh()
    for k in range(3):
        state = states[..., k * WIDTH : (k + 1) * WIDTH]
        expected = expected + shares[..., k, None] * head.classes(state).softmax(-1)
    close(head(x), expected.log(), within)


def test_a_mixture_sums_to_one_and_its_logarithms_have_a_higher_rank():
    torch.manual_seed(0)
    head, x = MixtureOfSoftmaxes(4, VOCABULARY, 3).double(), 3 * torch.randn(40, 4, dtype=torch.float64)
    close(head(x).exp().sum(-1), torch.ones(40, dtype=torch.float64))
    logits = nn.Linear(4, VOCABULARY).double()(x)
    # The logarithm of the sum over classes adds one to the rank, and the bias another.
    assert torch.linalg.matrix_rank(logits.log_softmax(-1)) <= 4 + 2 < torch.linalg.matrix_rank(head(x))


@pytest.mark.agrees(
    "backbone.embedding.rank", "backbone.embedding.cutoffs", compared="rows of the product, in float32", within=1e-6
)
def test_embeddings_have_the_rank_of_their_factors_and_the_requested_deviation(within):
    torch.manual_seed(0)
    factorised = FactorisedEmbedding(2000, 64, 8, 0.25)
    assert torch.linalg.matrix_rank(factorised.table()) == 8
    assert factorised.table().std().item() == pytest.approx(0.25, rel=0.1)
    tokens = torch.tensor([[3, 0], [7, 3]])
    close(factorised(tokens), factorised.table()[tokens], within)
    adaptive = AdaptiveEmbedding(2000, 64, [100, 500], 4, 0.25, order=[1999])
    for cluster, rank in zip(adaptive.table()[[1999, *range(1999)]].split([100, 400, 1500]), (64, 16, 4), strict=True):
        assert torch.linalg.matrix_rank(cluster) == rank
    assert adaptive.table().std().item() == pytest.approx(0.25, rel=0.1)
    close(adaptive(tokens), adaptive.table()[tokens], within)


@pytest.mark.agrees("backbone.embedding.tied", compared="products with the embeddings", within=1e-12)
@pytest.mark.parametrize("own", [{}, {"rank": 4}, {"cutoffs": [3, 6]}])
def test_a_tied_head_uses_the_embeddings_and_adds_no_parameters(own, within):
    network, batch = model(LANGUAGE, embedding={**TABLE, **own, "tied": True}), batch_for(LANGUAGE, (24, 24))
    output, table = network(batch), network.embedding.table()
    close(output.logits, network.hidden(batch) @ table.mT / WIDTH**0.5, within)
    parts = network.parameter_parts()
    assert parts["head"] == 0 and parts["total"] == parts["body"] + parts["embeddings"]
    # The gradient is the sum of those of both uses.
    (both,) = torch.autograd.grad(output.logits.square().sum(), next(network.embedding.parameters()), retain_graph=True)
    hidden = network.hidden(batch).detach()
    logits = hidden @ network.embedding.table().mT / WIDTH**0.5
    (of_head,) = torch.autograd.grad(logits.square().sum(), next(network.embedding.parameters()))
    logits = network.hidden(batch) @ table.detach().mT / WIDTH**0.5
    (of_input,) = torch.autograd.grad(logits.square().sum(), next(network.embedding.parameters()))
    close(both, of_head + of_input, 1e-9)
    assert of_head.abs().max() > 0 and of_input.abs().max() > 0


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (
            LANGUAGE,
            {"output": {"kind": "hierarchical"}},
            r"output\.kind=hierarchical: must be one of softmax",
        ),
        (task(), {"output": ADAPTIVE}, r"output\.kind=adaptive: toy does not score every token"),
        (task("tagging"), {"embedding": {**TABLE, "tied": True}}, r"embedding\.tied=true: toy does not predict tokens"),
        (LANGUAGE, {"embedding": {**TABLE, "tied": True}, "output": ADAPTIVE}, r"embedding\.tied=true: is not used"),
        (LANGUAGE, {"embedding": {**TABLE, "rank": 2, "cutoffs": [3]}}, r"embedding\.rank: is not used with"),
        (LANGUAGE, {"embedding": {**TABLE, "cutoffs": [11]}}, r"embedding\.cutoffs=\[11\]: must be"),
        (LANGUAGE, {"output": {**ADAPTIVE, "cutoffs": None}}, r"output\.cutoffs=null: must be"),
        (LANGUAGE, {"output": {"kind": "mixture", "components": 0}}, r"output\.components=0: must be at least 1"),
        (task(channels=2), {"embedding": {**TABLE, "rank": 2}}, r"backbone\.embedding: toy has values instead"),
    ],
)
def test_wrong_options_raise_user_error(spec, options, message):
    with pytest.raises(UserError, match=message):
        model(spec, **options)
