"""kNN-LM: the mixed distribution, compared with its definition, and its datastore."""

import pytest
import torch
from datasets import Dataset

from lra_bench.contracts import NOT_SCORED, Finished, UserError
from lra_bench.data.batches import Rows
from lra_bench.models.memory import features
from lra_bench.models.memory.datastore import principal_components
from lra_bench.models.memory.features import chosen_examples, described, described_examples
from lra_bench.models.memory.knn_lm import KnnLM, choose, interpolate
from tests.support.model_cases import batch_for, model, randomise, task

KINDS = {
    "classification": task(),
    "matching": task("matching"),
    "tagging": task("tagging"),
    "language_modeling": task("language_modeling", "causal", classes=11),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def rows_of(spec, count=20, seed=0):
    """Return a split of random examples; language modelling has two documents of several windows."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(length):
        return torch.randint(11, (length,), generator=generator).tolist()

    if spec.kind == "language_modeling":
        return Rows(Dataset.from_dict({"tokens": [tokens(60), tokens(100)]}), spec)
    sizes = torch.randint(1, 25, (count,), generator=generator).tolist()
    examples = [[tokens(size), tokens(9)] if spec.kind == "matching" else tokens(size) for size in sizes]
    labels = torch.randint(3, (count, 24), generator=generator).tolist()
    targets = [label[:size] if spec.per_token else label[0] for label, size in zip(labels, sizes, strict=True)]
    return Rows(Dataset.from_dict({"tokens": examples, "target": targets}), spec)


def made(kind, finish=True, **options):
    """Return a small system, after ``finish`` unless it is False, and a batch."""
    spec = KINDS[kind]
    network = randomise(model(spec))
    options = {"keys": 1000, "neighbours": 7, "share": 0.4, "temperature": 0.3, **options}
    system = KnnLM(network=network, another=None, spec=spec, **options).eval()
    if finish:
        system.finish(rows_of(spec), rows_of(spec, seed=1))
    return system, batch_for(spec, ((24, 9), (17, 17), (1, 2)) if kind == "matching" else (24, 17, 1))


@pytest.mark.agrees("knn_lm", compared="mixed distribution of the paper", within=1e-10)
@every_kind
def test_equals_its_definition(kind, within):
    system, batch = made(kind)
    spec, network = system.spec, system.network
    features, _, labels, _ = described_examples(network, rows_of(spec), spec, 1000, 0)
    output, queries = described(network, batch)
    own = output.logits.softmax(-1).flatten(0, -2)
    share, temperature = system.chosen
    expected = torch.empty_like(own)
    for number, query in enumerate(queries.flatten(0, -2)):
        near = (features - query).square().sum(-1).sort(stable=True)
        weights = (-near.values[:7] / temperature).softmax(0)
        theirs = torch.zeros(spec.classes, dtype=torch.float64)
        for weight, label in zip(weights, labels[near.indices[:7]], strict=True):
            theirs[label] += weight
        expected[number] = share * theirs + (1 - share) * own[number]
    found = system(batch).logits.exp().flatten(0, -2)
    assert (found - expected).abs().max() <= within
    assert (found.sum(-1) - 1).abs().max() < 1e-12


@every_kind
def test_without_neighbours_it_is_the_model(kind):
    system, batch = made(kind, share=0.0)
    assert torch.equal(system(batch).logits, system.network(batch).logits)
    unfinished, _ = made(kind, finish=False)
    assert torch.equal(unfinished(batch).logits, unfinished.network(batch).logits)
    system, _ = made(kind, share=1.0)
    assert not torch.allclose(system(batch).logits.exp(), system.network(batch).logits.softmax(-1))
    assert torch.equal(system.train()(batch).logits, system.network(batch).logits)


def test_features_are_the_input_of_the_last_feed_forward_network():
    system, batch = made("language_modeling")
    network, seen = system.network, []
    network.blocks[-1].feed_forward_norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    features = described(network, batch)[1]
    assert torch.equal(features, seen[0])
    network.blocks[-1].chunks = 3
    assert (described(network, batch)[1] - features).abs().max() < 1e-12


def test_described_examples_later_tokens_have_no_effect():
    system, batch = made("language_modeling", keys=30)
    changed = batch.tokens.clone()
    changed[:, 10:] = 3
    other = system(type(batch)(batch.lengths, batch.targets, tokens=changed))
    assert (system(batch).logits - other.logits)[:, :10].abs().max() < 1e-12


def test_the_order_of_the_datastore_is_irrelevant():
    system, batch = made("classification")
    before = system(batch).logits
    store = system.datastore
    order = torch.randperm(len(store.targets), generator=torch.Generator().manual_seed(3))
    index = type(store.index)(store.index.keys[order])
    system.datastore = type(store)(index, store.targets[order], store.projection)
    assert (system(batch).logits - before).abs().max() < 1e-10


def test_a_known_example_gets_its_label_at_low_temperature():
    system, _ = made("classification", neighbours=1, share=1.0, temperature=1e-6)
    rows = rows_of(system.spec)
    batch = rows.batch(list(range(len(rows))))
    assert torch.equal(system(batch).logits.argmax(-1), batch.targets)


def test_choice_has_the_lowest_loss():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    distances = torch.rand(50, 3, generator=generator, dtype=torch.float64)
    labels, targets = (torch.randint(4, shape, generator=generator) for shape in ((50, 3), (50,)))
    shares, temperatures = (0.0, 0.2, 0.5), (0.1, 1.0)

    def loss(share, temperature):
        mixed = interpolate(logits, distances, labels, share, temperature)
        return float(torch.nn.functional.nll_loss(mixed, targets))

    found = choose(shares, temperatures, logits, (distances, labels), targets)
    losses = {pair: loss(*pair) for pair in [(share, each) for each in temperatures for share in shares]}
    assert losses[found] == min(losses.values())


def test_windows_are_those_of_the_documents():
    spec = KINDS["language_modeling"]
    rows = rows_of(spec)
    batches = list(chosen_examples(rows, spec, 10_000, 0))
    targets = torch.cat([batch.targets[batch.targets != NOT_SCORED] for batch in batches])
    assert targets.tolist() == [*rows.row(0)[1:].tolist(), *rows.row(1)[1:].tolist()]
    fewer = list(chosen_examples(rows, spec, 30, 0))
    assert sum(batch.size for batch in fewer) == 2
    assert len(described_examples(made("language_modeling")[0].network, rows, spec, 30, 0).targets) == 30


@every_kind
def test_batches_of_long_examples_are_smaller(kind, monkeypatch):
    spec = KINDS[kind]
    rows = rows_of(spec)
    longest = spec.train_length if kind == "language_modeling" else int(rows.row_lengths.max())
    whole = torch.cat([batch.targets.flatten() for batch in chosen_examples(rows, spec, None, 0)])
    for tokens, most in ((3 * longest, 3), (longest - 1, 1)):
        monkeypatch.setattr(features, "TOKENS_AT_ONCE", tokens)
        batches = list(chosen_examples(rows, spec, None, 0))
        assert max(batch.targets.shape[0] for batch in batches) == most
        scored = [batch.targets[batch.targets != NOT_SCORED] for batch in batches]
        assert torch.equal(torch.cat(scored), whole[whole != NOT_SCORED])


def test_principal_components_keep_distances_within_their_space():
    points = torch.randn(40, 3, dtype=torch.float64) @ torch.randn(3, 8, dtype=torch.float64)
    assert (torch.cdist(points, points) - torch.cdist(*[points @ principal_components(points, 3)] * 2)).max() < 1e-6


def test_benchmark_has_a_datastore_of_full_size():
    system, batch = made("matching", finish=False, keys=123, dimensions=5)
    assert isinstance(system, Finished) and not isinstance(system.network, Finished)
    system.finish_for_benchmark()
    assert system.datastore.index.keys.shape == (123, 5) and system(batch).logits.isfinite().all()


@pytest.mark.parametrize(
    "options", [{"keys": 0}, {"neighbours": 0}, {"share": 1.5}, {"temperature": 0.0}, {"dimensions": 0}, {"tuning": 0}]
)
def test_invalid_options_raise_user_error(options):
    with pytest.raises(UserError, match=rf"model\.retrieval\.{next(iter(options))}="):
        made("classification", **options)


def test_capability_names_the_source():
    system, _ = made("classification", finish=False)
    assert system.capability.family == "memory" and system.capability.causal == "exact"
