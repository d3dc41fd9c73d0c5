"""SAC: attention along edges, their sampling and log-probabilities, and training with REINFORCE."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import UserError
from lra_bench.models.kernels.edges import distinct, edge_attention
from lra_bench.models.routed.reinforced import ReinforcedModel, row_rewards
from lra_bench.options.backbone import BackboneOptions
from lra_bench.training.loop import after_step, stepped_modules
from tests.oracles.routed import walks
from tests.support.mixer_cases import NODES, context, dense_output, make, rows, run
from tests.support.model_cases import batch_for, node_file, task


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reinforced(spec, seed=0, **own):
    """Return a small model whose predictor is trained with REINFORCE."""
    torch.manual_seed(seed)
    node = {**NODES["sac"], "edges": 2, "hidden": 4, **own}
    options = BackboneOptions(width=16, ff_width=24, dropout=0.0)
    position = node_file("position", "sinusoidal")
    return ReinforcedModel(spec=spec, mixer=node, position=position, options=options).double()


class TestEdges:
    def test_duplicate_edges_count_once_and_masked_ones_never(self):
        sources, targets = torch.tensor([[2, 0, 2, 1, 0, 2]]), torch.tensor([[1, 0, 1, 2, 2, 2]])
        seen = torch.tensor([[True, True, True, True, False, True]])
        found = distinct(sources, targets, seen, 3)
        pairs = {(i, j) for i, j, kept in zip(*(x[0].tolist() for x in found), strict=True) if kept}
        assert pairs == {(0, 0), (1, 2), (2, 1), (2, 2)} and found[2].sum() == 4

    @pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
    def test_edge_attention_and_its_gradients_match_masked_attention(self, share):
        n, generator = 9, torch.Generator().manual_seed(3)
        visible = torch.rand(2, n, n, generator=generator) < share
        pairs = torch.tensor(list(itertools.product(range(n), range(n))))[torch.randperm(n * n, generator=generator)]
        sources, targets = pairs.T[:, None].expand(2, 2, -1)
        seen = visible.flatten(1).gather(1, sources * n + targets)
        gradients = []
        for dense in (False, True):
            q, k, v = (draw(2, 3, n, 4, seed=s).requires_grad_() for s in range(3))
            if dense:
                scores = (q @ k.mT * 4**-0.5).masked_fill(~visible[:, None], -1e30)
                o = (scores.softmax(-1) * visible[:, None]) @ v
            else:
                o = edge_attention(q, k, v, sources, targets, seen)
            gradients.append((o, *torch.autograd.grad(o.square().sum(), (q, k, v))))
        for actual, expected in zip(*gradients, strict=True):
            assert actual.isfinite().all() and (actual - expected).abs().max() < 1e-12

    def test_large_scores_are_finite(self):
        q, k, v = (200 * draw(1, 1, 6, 4, seed=s) for s in range(3))
        pairs = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T[:, None]
        o = edge_attention(q, k, v, pairs[0], pairs[1], torch.ones(1, 36, dtype=torch.bool))
        assert (o - F.scaled_dot_product_attention(q, k, v)).abs().max() < 1e-9


@pytest.mark.parametrize("sequential", [False, True])
class TestPredictor:
    @pytest.mark.parametrize("lengths", [None, [14, 5]])
    def test_edges_and_log_probabilities_match_the_definition(self, sequential, lengths):
        mixer, x = make("sac", sequential=sequential), rows(2, 14)
        sources, targets, real, log_probability = mixer.connect(x, context(14, lengths))
        for row, length in enumerate(lengths or [14, 14]):
            edges, expected = walks(mixer, x[row, :length])
            kept = real[row]
            assert list(zip(sources[row, kept].tolist(), targets[row, kept].tolist(), strict=True)) == edges
            assert len(edges) == mixer.edges * length and max(max(edge) for edge in edges) < length
            assert (log_probability[row] - expected).abs() < 1e-12

    def test_gradients_of_chances_are_those_of_the_definition(self, sequential):
        mixer, x, gradients = make("sac", sequential=sequential), rows(1, 9), []
        for log_probability in (mixer.connect(x, context(9))[3].sum(), walks(mixer, x[0])[1]):
            gradients.append(torch.autograd.grad(log_probability, list(mixer.predictor.parameters())))
        for actual, expected in zip(*gradients, strict=True):
            assert (actual - expected).abs().max() < 1e-12

    def test_output_matches_the_definition(self, sequential):
        mixer, x, lengths = make("sac", sequential=sequential), rows(2, 14), [14, 3]
        actual, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
        assert (actual - expected)[0].abs().max() < 1e-12 and (actual - expected)[1, :3].abs().max() < 1e-12

    def test_training_samples_from_the_predicted_distribution(self, sequential):
        """Over many sequences, frequencies of the first choice match its probabilities."""
        mixer = make("sac", sequential=sequential, edges=1).train()
        predictor = mixer.predictor
        nodes = predictor.nodes(rows(1, 5)).expand(4000, -1, -1)
        begin = None if sequential else torch.full((4000, 1), 2)
        torch.manual_seed(0)
        chosen = predictor.walk(nodes, begin, torch.rand(4000, 1, 1), None)
        first = None if begin is None else begin[:1]
        every = [predictor.log_chances(nodes[:1], first, torch.tensor([[[at]]]), None) for at in range(5)]
        log_probabilities = torch.cat(every).exp()
        assert abs(log_probabilities.sum().item() - 1) < 1e-12
        found = chosen.flatten().bincount(minlength=5) / 4000
        assert (found - log_probabilities.flatten()).abs().max() < 0.04

    def test_gradients_of_tokens_and_predictor_are_separate(self, sequential):
        mixer, x = make("sac", sequential=sequential), rows(1, 9).requires_grad_()
        y, after = mixer(x, context(9))
        assert torch.autograd.grad(after.carry["sac"].sum(), x, allow_unused=True, retain_graph=True) == (None,)
        unused = torch.autograd.grad(y.square().sum(), list(mixer.predictor.parameters()), allow_unused=True)
        assert all(gradient is None for gradient in unused)

    def test_evaluation_is_deterministic_and_without_gradients_has_no_carry(self, sequential):
        mixer, x = make("sac", sequential=sequential), rows(1, 9)
        with torch.no_grad():
            assert torch.equal(run(mixer, x), run(mixer, x)) and not mixer(x, context(9))[1].carry
        mixer.train()
        assert not torch.equal(run(mixer, x), run(mixer, x))


class TestReinforce:
    @pytest.mark.parametrize("kind", ["classification", "tagging"])
    def test_loss_is_baseline_minus_reward_times_log_probability(self, kind):
        spec = task(kind)
        network, batch, log_probabilities = reinforced(spec).train(), batch_for(spec, lengths=(9, 5, 1)), []
        network.mixers[-1].register_forward_hook(
            lambda module, inputs, result: log_probabilities.append(result[1].carry["sac"])
        )
        network.rewards.copy_(torch.tensor([-3.0, 2.0]))
        output = network(batch)
        log_likelihood = output.logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
        reward = (log_likelihood if kind == "classification" else log_likelihood.mean(1)).detach()
        assert (output.losses["sac"] - ((-1.5 - reward) * log_probabilities[0]).mean()).abs() < 1e-12
        assert (output.statistics[""]["rewards"][0] - reward.sum()).abs() < 1e-10

    def test_gradient_is_that_of_the_expected_reward(self):
        """With two choices, the expectation of the REINFORCE gradient is the gradient of the mean reward."""
        logits, rewards = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True), torch.tensor([-2.0, -0.5])
        (expected,) = torch.autograd.grad(-(logits.softmax(0) * rewards).sum(), logits)
        for baseline in (0.0, -1.0):
            log_probabilities = logits.log_softmax(0)
            mean = (log_probabilities.detach().exp() * (baseline - rewards) * log_probabilities).sum()
            assert (torch.autograd.grad(mean, logits)[0] - expected).abs().max() < 1e-12

    def test_predictor_learns_the_rewarded_edge(self):
        """A walk of one step from token 0 is rewarded if it leads to token 1."""
        mixer, x = make("sac", edges=1), rows(1, 2)
        predictor, begin = mixer.predictor, torch.zeros(64, 1, dtype=torch.long)
        optimizer = torch.optim.Adam(predictor.parameters(), lr=0.05)
        torch.manual_seed(0)
        for _ in range(40):
            nodes = predictor.nodes(x).expand(64, -1, -1)
            chosen = predictor.walk(nodes, begin, torch.rand(64, 1, 1), None)
            reward = chosen.flatten().double()
            log_probability = predictor.log_chances(nodes, begin, chosen, None).flatten()
            optimizer.zero_grad()
            ((reward.mean() - reward) * log_probability).mean().backward()
            optimizer.step()
        assert reward.mean() > 0.9

    def test_baseline_is_updated_between_steps(self):
        network, batch = reinforced(task()).train(), batch_for(task(), lengths=(9, 5, 1))
        output = network(batch)
        assert network.rewards.abs().max() == 0
        after_step(stepped_modules(network), 0, output.statistics)
        found = output.statistics[""]["rewards"]
        assert (network.rewards[0] / network.rewards[1] - found[0] / 3).abs() < 1e-6

    def test_loss_exists_only_in_training_and_reaches_every_predictor(self):
        network, batch = reinforced(task()), batch_for(task(), lengths=(9, 5, 1))
        assert not network.eval()(batch).losses
        network.train()(batch).losses["sac"].backward()
        for mixer in network.mixers:
            assert all(p.grad.abs().max() > 0 for name, p in mixer.predictor.named_parameters() if "near" not in name)
        assert network.mixers[0].query.weight.grad is None and network.head is not None

    def test_two_documents_share_one_reward(self):
        spec = task("matching")
        network = reinforced(spec).train()
        assert network(batch_for(spec, lengths=((9, 5), (4, 1)))).losses["sac"].isfinite()

    def test_rewards_ignore_targets_that_are_not_scored(self):
        logits, targets = draw(2, 4, 3), torch.tensor([[0, -100, 2, -100], [-100] * 4])
        log_likelihood = logits.log_softmax(-1)
        expected = (log_likelihood[0, 0, 0] + log_likelihood[0, 2, 2]) / 2
        assert (row_rewards(logits, targets) - torch.stack((expected, expected * 0))).abs().max() < 1e-12


def test_causal_form_and_invalid_options_are_rejected():
    with pytest.raises(UserError, match="no exact causal form"):
        make("sac", causal=True)
    for own in ({"edges": 0}, {"hidden": 0}, {"distance": 0}, {"kv_heads": 1}):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("sac", **own)
