"""Position encodings: formulas, supported lengths and errors."""

import math

import pytest
import torch

from lra_bench.build import build
from lra_bench.contracts import UserError
from lra_bench.models.embedding import DEVIATION
from lra_bench.models.positions.learned import LearnedPosition
from lra_bench.models.positions.none import NoPosition
from lra_bench.models.positions.position import Position
from lra_bench.models.positions.sinusoidal import SinusoidalPosition, sinusoids
from tests.support.mixer_cases import POSITIONS
from tests.support.model_cases import batch_for, model, task

HOOKS = {"embed", "rotate", "bias", "scores", "weight"}


@pytest.mark.parametrize(("name", "node"), POSITIONS.items())
def test_every_config_builds_a_position_with_the_declared_hooks(name, node):
    position = build(node, Position, "position", width=8, heads=2, max_length=16)
    assert position.name == name
    assert position.hooks <= HOOKS
    for hook in HOOKS:
        assert (getattr(type(position), hook) is not getattr(Position, hook)) == (hook in position.hooks), hook
    for length in (1, 16):
        assert position.supports_length(length) is None
    if "embed" in position.hooks:
        x = torch.randn(2, 16, 8)
        y = position.embed(x, torch.arange(16))
        assert y.shape == x.shape and y.dtype == x.dtype
        assert torch.equal(y, position.embed(x, torch.arange(16).expand(2, 16)))
        assert position.embed(x.bfloat16(), torch.arange(16)).dtype == torch.bfloat16


def test_missing_hook_raises():
    with pytest.raises(NotImplementedError, match="no rotate hook"):
        NoPosition(8, 2, 16).rotate(*[torch.zeros(1)] * 4)


class TestSinusoidal:
    @pytest.mark.agrees("position=sinusoidal", compared="formula of the paper", within=1e-12)
    def test_formula(self, within):
        waves = sinusoids(torch.arange(50), 8)
        for i in (0, 1, 17, 49):
            for m in range(4):
                rate = 10_000 ** (-2 * m / 8)
                assert waves[i, 2 * m].item() == pytest.approx(math.sin(i * rate), rel=0, abs=within)
                assert waves[i, 2 * m + 1].item() == pytest.approx(math.cos(i * rate), rel=0, abs=within)

    def test_inner_products_depend_only_on_the_offset(self):
        waves = sinusoids(torch.arange(20_000), 64)
        products = [(waves[i] @ waves[i + 7]).item() for i in (0, 100, 19_000)]
        assert max(products) - min(products) < 1e-9
        assert (waves.square().sum(-1) - 32).abs().max() < 1e-9

    def test_odd_widths_and_scale(self):
        assert sinusoids(torch.arange(3), 7).shape == (3, 7)
        x = torch.zeros(1, 9, 8)
        ratio = SinusoidalPosition(8, 2, 4, scale=1.0).embed(x, torch.arange(9)) / sinusoids(torch.arange(9), 8)
        assert (ratio[:, 1:] - 1).abs().max() < 1e-5
        assert SinusoidalPosition(8, 2, 4).embed(x, torch.arange(9)).abs().max() <= DEVIATION

    def test_any_length(self):
        assert SinusoidalPosition(8, 2, 4).supports_length(10**9) is None


class TestLearned:
    def table(self, extend, length=10):
        position = LearnedPosition(4, 2, length, extend=extend)
        return position, position.table.weight.detach()

    def test_initial_scale_equals_that_of_tokens(self):
        assert LearnedPosition(64, 2, 2000).table.weight.std().item() == pytest.approx(DEVIATION, rel=0.02)

    @pytest.mark.agrees("position=learned", compared="rows of the table", within=0)
    @pytest.mark.parametrize("extend", ["error", "clamp", "interpolate"])
    def test_within_the_table_every_extend_looks_up(self, extend, within):
        position, table = self.table(extend)
        for n in (1, 7, 10):
            assert (position.embed(torch.zeros(1, n, 4), torch.arange(n))[0] - table[:n]).abs().max() <= within

    def test_beyond_the_table_the_error_names_the_option(self):
        position, _ = self.table("error")
        assert "position.extend" in position.supports_length(11)
        with pytest.raises(UserError, match=r"position\.extend"):
            position.embed(torch.zeros(1, 11, 4), torch.arange(11))

    def test_clamp_repeats_the_last_vector(self):
        position, table = self.table("clamp")
        y = position.embed(torch.zeros(1, 14, 4), torch.arange(14))[0]
        assert torch.equal(y[:10], table) and torch.equal(y[10:], table[-1:].expand(4, 4))
        far = position.embed(torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [500, 501, 502]]))
        assert torch.equal(far[1], table[-1:].expand(3, 4))

    def test_interpolation_stretches_the_table(self):
        position, table = self.table("interpolate")
        y = position.embed(torch.zeros(1, 19, 4), torch.arange(19))[0]
        assert (y[::2] - table).abs().max() < 1e-6
        assert (y[1::2] - (table[1:] + table[:-1]) / 2).abs().max() < 1e-6
        single, vector = self.table("interpolate", 1)
        assert (single.embed(torch.zeros(1, 5, 4), torch.arange(5))[0] - vector).abs().max() < 1e-7

    def test_unknown_extend_is_rejected(self):
        with pytest.raises(UserError, match=r"position\.extend=wrap"):
            self.table("wrap")

    def test_model_rejects_lengths_beyond_the_table_before_running(self):
        network = model(task(), "transformer", "learned")
        assert network.supports_length(24) is None
        assert "position.extend" in network.supports_length(25)
        with pytest.raises(UserError, match=r"position\.extend"):
            network(batch_for(task(), (25,)))
        assert model(task(), "transformer", "learned", max_length=48).supports_length(48) is None


@pytest.mark.parametrize("mixer", ["transformer", "performer"])
def test_output_depends_on_order_only_with_positions(mixer):
    batch = batch_for(task(), (24, 24))
    flipped = batch.tokens.flip(1)
    for position, same in (("none", True), ("sinusoidal", False), ("learned", False)):
        network = model(task(), mixer, position)
        after = network(type(batch)(batch.lengths, batch.targets, flipped)).logits
        difference = (after - network(batch).logits).abs().max().item()
        assert (difference < 1e-12) is same
