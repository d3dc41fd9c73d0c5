"""Positions that act on queries, keys and scores: golden values, relative positions, lengths beyond training."""

import math

import pytest
import torch
from torch.nn.functional import softplus

from lra_bench.contracts import UserError
from lra_bench.models.mixer import Padding
from lra_bench.models.positions.alibi import slopes
from lra_bench.models.positions.sinusoidal import sinusoids
from tests.support.mixer_cases import POSITIONS, context, make, make_position, rows, run
from tests.support.model_cases import batch_for, model, task


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at(*places):
    return torch.tensor(places)


def same(a, b, tolerance=1e-10):
    return a.shape == b.shape and (a - b).abs().max().item() <= tolerance


def products(position, n=20, shift=0, head_dim=8):
    """Return inner products (1, 2, N, N) of rotated queries and keys."""
    q, k, places = draw(1, 2, n, head_dim), draw(1, 2, n, head_dim, seed=1), torch.arange(n) + shift
    q, k = position.rotate(q, k, places, places)
    return q @ k.mT


class TestRope:
    def test_position_0_is_the_identity_and_norms_are_preserved(self):
        rope, q = make_position("rope"), draw(2, 2, 50, 8)
        rotated, _ = rope.rotate(q, q, torch.arange(50), torch.arange(50))
        assert same(rotated[:, :, :1], q[:, :, :1], 0)
        assert same(rotated.norm(dim=-1), q.norm(dim=-1))
        assert not same(rotated, q, 0.1)

    def test_golden_angles(self):
        q = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
        q[..., 1] = 1.0
        rotated, _ = make_position("rope").rotate(q, q, at(7), at(7))
        angle = 7 * 10_000 ** (-2 / 6)
        expected = [0, math.cos(angle), 0, 0, math.sin(angle), 0]
        assert same(rotated.flatten(), torch.tensor(expected, dtype=torch.float64), 1e-12)

    @pytest.mark.parametrize("head_dim", [1, 2, 7, 8])
    def test_products_depend_only_on_the_offset(self, head_dim):
        rope = make_position("rope", head_dim=head_dim)
        assert same(products(rope, head_dim=head_dim), products(rope, shift=100_000, head_dim=head_dim), 1e-8)

    def test_shared_keys_at_other_positions(self):
        rope, q, k = make_position("rope"), draw(2, 4, 5, 8), draw(2, 2, 9, 8, seed=1)
        rotated_q, rotated_k = rope.rotate(q, k, torch.arange(5), torch.arange(9) + 3)
        assert same(rotated_k, rope.rotate(k, k, torch.arange(9) + 3, torch.arange(9) + 3)[0])
        assert rotated_q.shape == q.shape

    def test_half_precision_is_rotated_precisely(self):
        rope, q = make_position("rope"), draw(1, 2, 4000, 8)
        exact, _ = rope.rotate(q, q, torch.arange(4000), torch.arange(4000))
        half, _ = rope.rotate(q.bfloat16(), q.bfloat16(), torch.arange(4000), torch.arange(4000))
        assert half.dtype == torch.bfloat16 and (half.double() - exact).abs().max() < 0.05


class TestRopeBeyondTraining:
    def angles(self, length, **options):
        """Return angles in [0, 2π) and norms of the last key's rotation in a model trained on 16 tokens."""
        rope = make_position("rope", max_length=16, **options)
        q = torch.cat((torch.ones(1, 1, length, 4), torch.zeros(1, 1, length, 4)), -1).double()
        rotated, _ = rope.rotate(q, q, torch.arange(length), torch.arange(length))
        complex_pairs = torch.complex(*rotated[0, 0, -1].chunk(2))
        return complex_pairs.angle() % (2 * math.pi), complex_pairs.abs()

    @pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
    def test_scaling_does_not_change_training_lengths(self, scaling):
        scaled, plain = (make_position("rope", scaling=kind, max_length=20) for kind in (scaling, "none"))
        assert same(products(scaled), products(plain), 0)
        by_row = torch.arange(20)[None]  # positions (B, N), as with a memory, so that the shape is not the length
        q = draw(1, 2, 20, 8)
        assert same(scaled.rotate(q, q, by_row, by_row)[0], plain.rotate(q, q, by_row, by_row)[0], 1e-12)

    @pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
    def test_products_depend_only_on_the_offset(self, scaling):
        rope = make_position("rope", scaling=scaling, train_length=5)
        q, k = draw(1, 2, 20, 8), draw(1, 2, 20, 8, seed=1)
        places = torch.arange(20)
        rotated_q, rotated_k = rope.rotate(*(x[:, :, :1].expand(-1, -1, 20, -1) for x in (q, k)), places, places)
        scores = rotated_q @ rotated_k.mT
        for d in (-3, 0, 4):
            line = scores.diagonal(d, -2, -1)
            assert same(line, line[..., :1].expand_as(line), 1e-9)

    def test_linear_divides_positions_by_the_factor(self):
        found, size = self.angles(64, scaling="linear")
        rates = torch.tensor([10_000 ** (-2 * m / 8) for m in range(4)], dtype=torch.float64)
        assert same(found, (63 / 4 * rates) % (2 * math.pi)) and same(size, torch.ones(4).double())

    def test_ntk_keeps_the_highest_frequency_and_divides_the_lowest(self):
        found, _ = self.angles(64, scaling="ntk")
        base = 10_000 * 4 ** (8 / 6)
        assert same(found, torch.tensor([63 * base ** (-2 * m / 8) for m in range(4)]).double() % (2 * math.pi), 1e-5)
        assert found[0].item() == pytest.approx(63 % (2 * math.pi))
        assert found[3].item() == pytest.approx(63 * 10_000 ** (-6 / 8) / 4)

    def test_yarn_formula(self):
        rope_rates, scale = [], 4
        for m in range(4):
            rate = 10_000 ** (-2 * m / 8)
            turns = 1000 * rate / (2 * math.pi)
            kept = min(max((turns - 1) / (32 - 1), 0), 1)
            rope_rates.append((1 - kept) * rate / scale + kept * rate)
        assert rope_rates[0] == 1 and rope_rates[3] == pytest.approx(0.001 / 4)
        assert 0.1 / 4 < rope_rates[1] < 0.1 and 0.01 / 4 < rope_rates[2] < 0.01
        found, size = self.angles(4000, scaling="yarn", train_length=1000)
        expected = torch.tensor([3999 * rate for rate in rope_rates], dtype=torch.float64)
        assert same(found, expected % (2 * math.pi), 1e-8)
        assert same(size, torch.full((4,), 0.1 * math.log(4) + 1, dtype=torch.float64))

    @pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
    def test_scaling_depends_on_the_tokens_of_each_sequence(self, scaling):
        """Other sequences of the batch and the amount of padding have no effect."""
        network = model(task(), "transformer", {**POSITIONS["rope"], "scaling": scaling})
        plain = model(task(), "transformer", "rope")
        batch = batch_for(task(), (24, 40, 50))
        together = network(batch).logits
        for row, length in enumerate((24, 40, 50)):
            alone = type(batch)(batch.lengths[row : row + 1], batch.targets[row : row + 1], batch.tokens[row : row + 1])
            short = type(batch)(alone.lengths, alone.targets, alone.tokens[:, :length])
            assert same(network(short).logits, together[row : row + 1])
            assert (length <= 24) is same(plain(short).logits, together[row : row + 1])


class TestAlibi:
    @pytest.mark.agrees("position=alibi", compared="slopes of the authors' code", within=0)
    def test_slopes_of_any_number_of_heads(self, within):
        for heads, expected in ((3, (2**-4, 2**-8, 2**-2)), (6, (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3))):
            assert (slopes(heads) - torch.tensor(expected)).abs().max() <= within

    def test_slopes(self):
        assert slopes(8).tolist() == [2**-h for h in range(1, 9)]
        assert slopes(4).tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
        assert slopes(1).tolist() == [2**-8]
        assert slopes(6).tolist() == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
        assert all(len(slopes(heads)) == heads and slopes(heads).unique().numel() == heads for heads in range(1, 40))

    def test_one_sided_heads(self):
        bias = make_position("alibi", form="one_sided", heads=4).bias(torch.arange(9), torch.arange(9))[0]
        for i in range(9):
            for j in range(9):
                for h, slope in enumerate((2**-4, 2**-8)):
                    before = -slope * (i - j) if j <= i else -math.inf
                    after = -slope * (j - i) if j >= i else -math.inf
                    assert bias[h, i, j] == before and bias[2 + h, i, j] == after

    def test_two_slopes(self):
        position = make_position("alibi", form="two_slopes")
        bias = position.bias(torch.arange(5), torch.arange(5))[0]
        assert bias[0, 4, 1] == -3 * 2**-4 and bias[1, 4, 1] == -3 * 2**-8
        assert bias[0, 1, 4] == -3 * 2**-8 and bias[1, 1, 4] == -3 * 2**-4
        assert {name for name, _ in position.named_parameters()} == {"before", "after"}

    @pytest.mark.parametrize("form", ["one_sided", "two_slopes"])
    def test_asymmetric_forms_run_and_have_gradients(self, form):
        position = make_position("alibi", form=form)
        mixer, x = make("transformer", position=position), rows(2, 61)
        y = run(mixer, x, [61, 30])
        gradients = torch.autograd.grad(y.square().sum(), list(mixer.parameters()))
        assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)
        assert y.isfinite().all()
        # A symmetric form would mirror the output with the input.
        assert not same(run(mixer, x.flip(1)).flip(1), run(mixer, x), 1e-3)
        symmetric = make("transformer", position=make_position("alibi"))
        assert same(run(symmetric, x.flip(1)).flip(1), run(symmetric, x))

    def test_one_sided_heads_attend_to_one_side(self):
        mixer, x = make("transformer", position=make_position("alibi", form="one_sided")), rows(1, 20)
        q, k, v = mixer.project(x)
        o = mixer.attend(q, k, v, context(20))
        other = v.clone()
        other[:, :, 12:] = 0
        changed = (mixer.attend(q, k, other, context(20)) - o).abs().amax((0, 3)) > 0
        assert changed[0].tolist() == [False] * 12 + [True] * 8 and changed[1].all()

    def test_invalid_options_are_rejected(self):
        for options in ({"form": "wrong"}, {"form": "one_sided", "heads": 1}, {"form": "two_slopes", "causal": True}):
            with pytest.raises(UserError, match=r"position\.form"):
                make_position("alibi", **options)


class TestT5:
    @pytest.mark.agrees("position=t5", compared="buckets of the authors' code", within=0)
    def test_golden_buckets(self, within):
        """Buckets of keys 128, 16, 8, 1, 0 tokens before and 1, 8, 16, 128 after the query, as in the released code."""
        both = make_position("t5").bucket(at(128, 16, 8, 1, 0, -1, -8, -16, -128))
        assert (both - at(15, 10, 8, 1, 0, 17, 24, 26, 31)).abs().max() <= within
        one = make_position("t5", causal=True).bucket(at(0, 1, 15, 16, 17, 127, 128, 10**6))
        assert (one - at(0, 1, 15, 16, 16, 31, 31, 31)).abs().max() <= within

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (64, 1000), (4, 3)])
    def test_buckets_match_the_formula(self, causal, buckets, most):
        side = buckets if causal else buckets // 2
        exact = side // 2
        found = make_position("t5", causal=causal, buckets=buckets, max_distance=most).bucket(torch.arange(2 * most))
        for n, bucket in enumerate(found.tolist()):
            grown = exact + math.floor(math.log(max(n, 1) / exact) / math.log(most / exact) * (side - exact) + 1e-9)
            assert bucket == (n if n < exact else min(grown, side - 1)), n

    def test_distances_beyond_the_maximum_share_a_bucket(self):
        position = make_position("t5")
        bias = position.bias(torch.arange(400), torch.arange(400))[0]
        assert same(bias[:, 399, :271], bias[:, 399, :1].expand(-1, 271), 0)
        position.table.data.zero_()
        assert position.bias(torch.arange(9), torch.arange(9)).abs().max() == 0

    def test_invalid_options_are_rejected(self):
        for options in ({"buckets": 6}, {"buckets": 0}, {"max_distance": 8}):
            with pytest.raises(UserError, match=rf"position\.{next(iter(options))}"):
                make_position("t5", **options)


class TestKerple:
    @pytest.mark.parametrize("form", ["log", "power"])
    def test_formula(self, form):
        position = make_position("kerple", form=form).double()
        bias = position.bias(torch.arange(12), torch.arange(12))[0]
        for h in range(2):
            a, b = softplus(position.amount[h]).item(), softplus(position.shape[h]).item()
            if form == "power":
                b = 2 / (1 + math.exp(-position.shape[h].item()))
            for i, j in ((0, 0), (3, 5), (11, 2)):
                d = abs(i - j)
                assert bias[h, i, j].item() == pytest.approx(-a * (math.log(1 + b * d) if form == "log" else d**b))
        gradients = torch.autograd.grad(bias.sum(), list(position.parameters()))
        assert all(gradient.isfinite().all() and gradient.abs().min() > 0 for gradient in gradients)

    @pytest.mark.parametrize(("form", "amounts", "shapes"), [("log", 2.0, 1.0), ("power", 1.0, 2.0)])
    def test_initial_values_are_uniform_as_in_the_authors_code(self, form, amounts, shapes):
        """In ``ParallelKerpleLog`` and ``ParallelKerplePower``; smaller values than 0.01 are raised to that or 0.02."""
        torch.manual_seed(0)
        position = make_position("kerple", form=form, heads=2048, width=2048).double()
        shape = softplus(position.shape) if form == "log" else 2 * position.shape.sigmoid()
        for values, most in ((softplus(position.amount), amounts), (shape, shapes)):
            quantiles = (values / most).quantile(torch.linspace(0, 1, 11, dtype=values.dtype))
            assert (quantiles - torch.linspace(0, 1, 11)).abs().max() < 0.03
            assert 0.009 < values.min() < 0.03 and values.max() <= most * (1 + 1e-6)

    def test_initial_values_of_log_equal_the_draws(self):
        torch.manual_seed(0)
        position = make_position("kerple", form="log", heads=8, width=8)
        torch.manual_seed(0)
        above = torch.rand(2, 8)
        assert (softplus(position.amount) - 2 * above[0]).abs().max() < 1e-6
        assert (softplus(position.shape) - above[1]).abs().max() < 1e-6

    def test_an_unknown_form_raises_user_error(self):
        with pytest.raises(UserError, match=r"position\.form=sum"):
            make_position("kerple", form="sum")


class TestShaw:
    def test_clipped_offsets_share_a_vector(self):
        q, places = draw(1, 2, 40, 8), torch.arange(40)
        scores = make_position("shaw", clip=3).double().scores(q, q, places, places)
        assert same(scores[..., 39, :37], scores[..., 39, :1].expand(-1, -1, 37))
        none = make_position("shaw", clip=0).double()
        assert same(none.scores(q, q, places, places), (q @ none.table[0] / 8**0.5)[..., None].expand(-1, -1, -1, 40))

    def test_clip_beyond_the_length_has_no_effect(self):
        q, places = draw(1, 2, 9, 8), torch.arange(9)
        wide, exact = (make_position("shaw", clip=clip).double() for clip in (20, 8))
        exact.table.data = wide.table.data[12:29].clone()
        assert same(wide.scores(q, q, places, places), exact.scores(q, q, places, places))

    def test_causal_table_has_one_side(self):
        assert make_position("shaw", causal=True).table.shape == (17, 8)
        assert make_position("shaw", head_dim=5).table.shape == (33, 5)
        with pytest.raises(UserError, match=r"position\.clip=-1"):
            make_position("shaw", clip=-1)


class TestTransformerXL:
    def test_clamped_offsets_count_as_the_largest_one(self):
        """Keys in the distance of the clamp and beyond have the same term apart from their content."""
        plain, clamped = (make_position("transformer_xl", clamp=clamp).double() for clamp in (None, 5))
        clamped.load_state_dict(plain.state_dict())
        q, k, places = draw(2, 2, 12, 8), draw(2, 2, 1, 8, seed=1).expand(2, 2, 12, 8), torch.arange(12)
        expected, found = (each.scores(q, k, places, places) for each in (plain, clamped))
        offsets = places[:, None] - places
        near = (offsets.abs() <= 5).expand_as(found)
        same(found[near], expected[near])
        for row in range(6, 12):
            same(found[:, :, row, : row - 5], expected[:, :, row, row - 5 : row - 4].expand(2, 2, row - 5))
        by_row = places + torch.tensor([[3], [40]])
        same(clamped.scores(q, k, by_row, by_row), found)
        with pytest.raises(UserError, match=r"position\.clamp=0"):
            make_position("transformer_xl", clamp=0)

    def test_scores_depend_only_on_the_offset(self):
        position = make_position("transformer_xl").double()
        q, k, places = draw(1, 2, 30, 8), draw(1, 2, 30, 8, seed=1), torch.arange(30)
        here, there = (position.scores(q, k, places + s, places + s) for s in (0, 50_000))
        assert same(here, there, 1e-8)

    def test_zero_weights_add_nothing(self):
        position = make_position("transformer_xl")
        for parameter in position.parameters():
            parameter.data.zero_()
        assert (
            position.scores(draw(1, 2, 5, 8).float(), draw(1, 2, 5, 8).float(), *[torch.arange(5)] * 2).abs().max() == 0
        )

    def test_shared_keys_and_odd_widths(self):
        position = make_position("transformer_xl", width=9, heads=4, head_dim=3).double()
        q, k, places = draw(2, 4, 7, 3), draw(2, 2, 7, 3, seed=1), torch.arange(7)
        repeated = position.scores(q, k.repeat_interleave(2, 1), places, places)
        assert same(position.scores(q, k, places, places), repeated)


class TestDistanceAware:
    def test_factor(self):
        position = make_position("da_transformer", heads=3).double()
        position.alpha.data = torch.tensor([0.0, 0.7, -0.7]).double()
        position.beta.data = torch.tensor([0.3, 0.3, 0.3]).double()
        places = torch.arange(3000)
        factor = position.weight(torch.ones(1, 3, 1, 3000).double(), at(0), places)[0, :, 0]
        assert same(factor[0], torch.ones(3000).double()) and same(factor[:, 0], torch.ones(3).double())
        assert (factor[1].diff() >= 0).all() and (factor[2].diff() <= 0).all()
        assert factor[1, -1].item() == pytest.approx(1 + math.exp(0.3)) and factor[2, -1] < 1e-12
        assert factor.isfinite().all()

    def test_negative_scores_become_zero(self):
        position = make_position("da_transformer")
        assert position.weight(-torch.ones(1, 2, 4, 4), torch.arange(4), torch.arange(4)).abs().max() == 0

    def test_initial_heads_alternate_between_near_and_far(self):
        alpha = make_position("da_transformer", heads=6, width=12).alpha
        assert (alpha[0::2] < 0).all() and (alpha[1::2] > 0).all()


class TestImages:
    images = task(channels=1, length=24, grid=(4, 6))

    @pytest.mark.parametrize("name", ["sinusoidal", "rope"])
    def test_two_dimensions_are_rows_and_columns(self, name):
        position = make_position(name, dimensions=2, grid=(4, 6)).double()
        assert position.coordinates(at(-1, 0, 5, 6, 23, 30)).tolist() == [[-1, 0, 0, 1, 3, 5], [-1, 0, 5, 0, 5, 0]]
        assert position.supports_length(48) is None and "dimensions=1" in position.supports_length(45)

    def test_sinusoidal(self):
        position = make_position("sinusoidal", dimensions=2, grid=(4, 6), scale=1.0)
        y = position.embed(torch.zeros(1, 24, 16).double(), torch.arange(24))[0]
        for i in (0, 5, 6, 23):
            assert same(y[i], torch.cat((sinusoids(at(i // 6), 8), sinusoids(at(i % 6), 8)), -1)[0])

    def test_products_of_rope_depend_only_on_both_offsets(self):
        rope = make_position("rope", dimensions=2, grid=(4, 6))
        q, k = draw(1, 1, 1, 8).expand(-1, -1, 24, -1), draw(1, 1, 1, 8, seed=1).expand(-1, -1, 24, -1)
        q, k = rope.rotate(q, k, torch.arange(24), torch.arange(24))
        scores = (q @ k.mT)[0, 0]
        found = {}
        for i in range(24):
            for j in range(24):
                apart = i // 6 - j // 6, i % 6 - j % 6
                assert scores[i, j].item() == pytest.approx(found.setdefault(apart, scores[i, j].item()))
        assert len({round(score, 9) for score in found.values()}) == len(found)

    @pytest.mark.parametrize("name", ["sinusoidal", "rope"])
    def test_models_use_the_grid_of_the_task(self, name):
        two = {**POSITIONS[name], "dimensions": 2}
        network = model(self.images, position=two, pooling="cls")
        assert network.position.grid == (4, 6)
        assert network(batch_for(self.images, (24, 24))).logits.isfinite().all()
        with pytest.raises(UserError, match=r"position\.dimensions=2"):
            model(task(), position=two)

    def test_invalid_options_are_rejected(self):
        for options in ({"dimensions": 3}, {"dimensions": 2}, {"dimensions": 2, "grid": (4, 6), "scaling": "ntk"}):
            with pytest.raises(UserError, match=r"position\."):
                make_position("rope", **options)


class TestRandomPositions:
    @pytest.mark.parametrize("name", [name for name in POSITIONS if name != "none"])
    def test_training_samples_sorted_positions_and_evaluation_counts(self, name):
        longest = 100
        position = make_position(name, random_positions=longest, max_length=longest if name == "learned" else 24)
        torch.manual_seed(0)
        samples = [position.train().places(20, torch.device("cpu")) for _ in range(30)]
        for places in samples:
            assert (places.diff() > 0).all() and places.min() >= 0 and places.max() < longest
        assert torch.stack(samples).unique().numel() > 95
        assert position.eval().places(20, torch.device("cpu")).tolist() == list(range(20))

    def test_as_many_positions_as_tokens_is_counting(self):
        position = make_position("rope", random_positions=24, max_length=24)
        assert position.train().places(24, torch.device("cpu")).tolist() == list(range(24))

    @pytest.mark.parametrize("name", ["rope", "t5", "sinusoidal"])
    def test_all_layers_share_sampled_positions(self, name):
        network = model(task(), position={**POSITIONS[name], "random_positions": 500}).train()
        seen = []
        for block in network.blocks:
            block.register_forward_hook(lambda module, inputs, output: seen.append(inputs[1].positions))
        batch, outputs = batch_for(task(), (24, 24)), []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            outputs.append(network(batch).logits)
        assert torch.equal(seen[0], seen[1]) and seen[0].max() > 24
        assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])

    def test_invalid_options_are_rejected(self):
        for name, options in {
            "none": {"random_positions": 200},
            "rope": {"random_positions": 20},
            "learned": {"random_positions": 200},
            "sinusoidal": {"random_positions": 200, "dimensions": 2, "grid": (4, 6)},
        }.items():
            with pytest.raises(UserError, match=r"position\.random_positions"):
                make_position(name, **options)
        with pytest.raises(UserError, match=r"position\.scaling=ntk.*random_positions"):
            make_position("rope", scaling="ntk", random_positions=200)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_without_maximum_runs_beyond_training(name):
    network = model(task(), position={**POSITIONS[name], **({"extend": "clamp"} if name == "learned" else {})})
    batch = batch_for(task(), (97, 55))
    assert network.supports_length(97) is None
    assert network(batch).logits.isfinite().all()


def test_model_passes_direction_and_head_width_to_its_position():
    network = model(task(direction="causal"), position="shaw", head_dim=5, pooling="last")
    assert network.position.causal and network.position.table.shape == (17, 5)
    assert model(task(), position="shaw", own={"head_dim": 3}).position.table.shape == (33, 3)
    parts = network.parameter_parts()
    assert parts["positions"] == 17 * 5


def test_positions_of_padding_stop_at_the_last_token():
    padding = Padding.from_lengths(torch.tensor([5, 3, 1]), 5)
    counted = context(5).replace(padding=padding, positions=torch.arange(-1, 4)).clamped_positions()
    assert counted.tolist() == [[-1, 0, 1, 2, 3], [-1, 0, 1, 1, 1], [-1, -1, -1, -1, -1]]
    assert context(5).clamped_positions().tolist() == list(range(5))


@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
@pytest.mark.parametrize("start", [0, 1, 17, 5000])
@pytest.mark.parametrize("shared", [True, False])
def test_scaling_depends_on_the_number_of_keys_and_not_on_their_place_in_a_stream(scaling, start, shared):
    position = make_position("rope", scaling=scaling, train_length=16)
    q, k = draw(2, 2, 9, 8), draw(2, 2, 24, 8, seed=1)

    def scores(position, keys, first):
        places = first + torch.arange(keys) if shared else (first + torch.arange(keys)).expand(2, -1)
        queries, rotated = position.rotate(q, k[:, :, :keys], places[..., keys - 9 :], places)
        return queries @ rotated.mT

    for keys in (12, 24):
        assert same(scores(position, keys, start), scores(position, keys, 0), 1e-9)
        unscaled = scores(make_position("rope"), keys, 0)
        assert same(scores(position, keys, 0), unscaled) == (keys <= 16)
