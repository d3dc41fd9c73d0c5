"""Calibration of CALM: p-values, the guarantee of learn then test, and ``finish`` on examples of a split."""

import math

import numpy as np
import pytest
import torch

from lra_bench.contracts import NOT_SCORED, DepthBudget
from lra_bench.data.batches import Rows
from lra_bench.models.depth.calibration import accepted, binomial_cdf, p_values
from lra_bench.models.depth.calm import CANDIDATES, Calm, first_exits, fit_balanced
from lra_bench.models.depth.examples import spread_batches
from tests.models.depth.test_early_exit import evaluated, network
from tests.support.model_cases import batch_for, task

FAILURE = 0.05


class TestLearnThenTest:
    def test_binomial_distribution_is_exact(self):
        for n, chance in ((1, 0.3), (7, 0.01), (40, 0.5)):
            expected = [
                sum(math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(most + 1))
                for most in range(n + 1)
            ]
            np.testing.assert_allclose(binomial_cdf(n, chance), expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("tolerance", [0.01, 0.1, 0.5])
    def test_p_values_are_valid_and_decrease_with_the_number_of_examples(self, tolerance):
        """Of Bernoulli losses at the boundary, P(p <= u) <= u for every u."""
        for n in (20, 300):
            means = np.arange(n + 1) / n
            p = p_values(means, n, tolerance)
            assert ((p >= 0) & (p <= 1)).all() and (np.diff(p) >= -1e-12).all()
            chances = np.diff(binomial_cdf(n, tolerance), prepend=0.0)
            for level in np.unique(p):
                assert chances[p <= level].sum() <= level + 1e-12
        by_n = [float(p_values(np.array([tolerance / 2]), n, tolerance)[0]) for n in (20, 200, 2000)]
        assert by_n == sorted(by_n, reverse=True) and by_n[-1] < by_n[0]
        assert p_values(np.array([1.0]), 5, tolerance)[0] == 1

    def test_testing_stops_at_the_first_threshold_that_is_not_accepted(self):
        risks = np.array([[0.0, 0.0, 0.4, 0.0], [0.4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
        assert accepted(risks, 500, 0.05, FAILURE).tolist() == [2, 0, 4]

    @pytest.mark.parametrize("tolerance", [0.05, 0.1])
    def test_the_bound_holds_on_held_out_rows_in_most_of_500_calibrations(self, tolerance):
        """Simulated confidences of four layers; the risk on held-out rows estimates the expected loss."""
        generator, runs, n = np.random.default_rng(0), 500, 300
        rows = 40_000
        skill = generator.normal(size=(rows, 1)) + np.array([0.5, 1.0, 1.5])
        confidence = 1 / (1 + np.exp(-skill))
        agrees = generator.random((rows, 4)) < np.concatenate((confidence, np.ones((rows, 1))), 1) ** 0.25
        agrees[:, -1] = True  # the last layer agrees with itself
        exits = first_exits(torch.from_numpy(confidence), torch.tensor(CANDIDATES, dtype=torch.float64)).numpy()
        losses = (~np.take_along_axis(agrees, exits, 1)).astype(float)
        calibration, held_out = losses[: rows // 2], losses[rows // 2 :]
        drawn = generator.integers(0, len(calibration), (runs, n))
        counts = accepted(calibration[drawn].mean(1), n, tolerance, FAILURE)
        true_risks = np.concatenate(([0.0], held_out.mean(0)))
        holds = true_risks[counts] <= tolerance
        error = math.sqrt(FAILURE * (1 - FAILURE) / runs)
        assert holds.mean() >= 1 - FAILURE - 2 * error
        assert 0 < counts.mean() < len(CANDIDATES) and true_risks[counts].max() > tolerance / 4  # not trivial


def test_first_exit_is_the_first_layer_that_reaches_the_threshold():
    confidences = torch.tensor([[0.2, 0.9, 0.5], [0.7, 0.1, 0.8]])
    assert first_exits(confidences, torch.tensor([0.95, 0.6, 0.2])).tolist() == [[3, 1, 0], [3, 0, 0]]


def test_balanced_regression_separates_a_rare_label():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 3, generator=generator)
    labels = features[:, 0] + 0.1 * torch.randn(400, generator=generator) > 1.3
    assert 0.05 < labels.double().mean() < 0.2
    weight, bias = fit_balanced(features, labels)
    predicted = features.double() @ weight + bias > 0
    assert min((predicted == labels)[labels].double().mean(), (predicted == labels)[~labels].double().mean()) > 0.9
    constant = fit_balanced(features, torch.ones(400, dtype=torch.bool))
    assert all(each.isfinite().all() for each in constant)


class Split:
    """Examples of a batch as rows of a split."""

    def __init__(self, spec, count, seed=0):
        self.spec, self.whole = spec, batch_for(spec, [24] * count, seed=seed)
        self.lengths = self.row_lengths = np.full(count, 24)

    def __len__(self):
        return self.whole.size

    def batch(self, indices):
        return self.whole._map(lambda tensor: tensor[torch.as_tensor(indices)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("confidence", ["softmax", "saturation", "classifier"])
@pytest.mark.parametrize("kind", ["classification", "tagging"])
@pytest.mark.parametrize("guarantee", ["consistency", "risk"])
def test_finish_calibrates_thresholds_whose_risk_is_that_of_the_split(kind, confidence, guarantee):
    spec = task(kind)
    made = network("calm", spec, 0.2, confidence=confidence, guarantee=guarantee, tolerances=[0.3, 0.6]).train()
    split = Split(spec, 70)
    made.finish(Split(spec, 60, seed=1), split)
    assert made.training
    made.eval()
    controller = made.controller
    assert [budget.value for budget in controller.depth_budgets() if budget.kind == "calibrated"] == [0.6, 0.3]
    full, _ = evaluated(made, split.whole, DepthBudget("layers", 4))
    for tolerance, found in controller.calibrated.items():
        logits, depths = evaluated(made, split.whole, DepthBudget("calibrated", tolerance))
        wrong = (logits.argmax(-1) != full.argmax(-1)).double()
        if guarantee == "risk":
            errors = [(each.argmax(-1) != split.whole.targets).double() for each in (logits, full)]
            wrong = errors[0] - errors[1]
        per_row = wrong if wrong.dim() == 1 else wrong.mean(1)
        assert found.n == 70
        if found.threshold is None:
            assert depths.eq(4).all()
        else:
            assert found.threshold in CANDIDATES
            assert found.risk == pytest.approx(per_row.clamp(min=0).mean().item(), abs=1e-12)
            assert float(p_values(np.array([found.risk]), 70, tolerance)[0]) <= FAILURE
    thresholds = [1.1 if each.threshold is None else each.threshold for each in controller.calibrated.values()]
    assert thresholds == sorted(thresholds, reverse=True) and thresholds[-1] < 1  # a larger tolerance exits earlier


def test_threshold_decays_over_the_tokens_of_a_text():
    spec = task("language_modeling", "causal", classes=11)
    made, batch = network("calm", spec), batch_for(spec, (24, 24))
    _, context, _ = made._embed(batch, None, False)
    expected = 0.9 * 0.8 + 0.1 * torch.exp(-4 * torch.arange(24.0) / spec.train_length)
    torch.testing.assert_close(made.controller.threshold(context, 0.8), expected)
    assert made.controller.threshold(context, 5.0).max() == 1
    assert network("calm", spec, decay=None).controller.threshold(context, 0.8) == 0.8
    assert network("calm", task()).controller.threshold(context, 0.8) == 0.8


def test_networks_of_one_layer_have_nothing_to_calibrate():
    made = network("calm", task(), depth=1)
    made.finish(Split(task(), 3), Split(task(), 3))
    assert made.controller.calibrated == {} and isinstance(made.controller, Calm)


class TestExamples:
    def test_windows_of_a_text_are_evenly_spread_and_predict_the_next_token(self):
        from datasets import Dataset

        spec = task("language_modeling", "causal", classes=11, length=5)
        texts = [list(range(23)), list(range(100, 104)), list(range(200, 231))]
        rows = Rows(Dataset.from_dict({"tokens": texts}), spec)
        batches = list(spread_batches(rows, spec, 5, torch.device("cpu")))
        tokens = torch.cat([batch.tokens for batch in batches])
        assert tokens[:, 0].tolist() == [0, 10, 200, 215, 225] and tokens.shape == (5, 5)
        assert (torch.cat([batch.targets for batch in batches]) == tokens + 1).all()
        assert all(batch.full for batch in batches)

    def test_rows_are_evenly_spread_in_batches_of_similar_length(self):
        from datasets import Dataset

        spec = task(length=64)
        lengths = [(7 * number) % 60 + 1 for number in range(100)]
        rows = Rows(Dataset.from_dict({"tokens": [[1] * n for n in lengths], "target": list(range(100))}), spec)
        batches = list(spread_batches(rows, spec, 50, torch.device("cpu")))
        chosen = torch.cat([batch.targets for batch in batches])
        assert len(set(chosen.tolist())) == 50 and chosen.min() == 0 and chosen.max() == 99
        found = torch.cat([batch.lengths for batch in batches])
        assert (found.diff() >= 0).all() and (torch.cat([batch.targets for batch in batches]) != NOT_SCORED).all()
