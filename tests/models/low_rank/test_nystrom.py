"""Nyströmformer: segments, the pseudo-inverse, the convolution and attention."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from lra_bench.contracts import UserError
from lra_bench.models.kernels.head_convolution import head_convolution
from lra_bench.models.kernels.pseudo_inverse import pseudo_inverse
from lra_bench.models.kernels.segments import segment_mean
from lra_bench.models.mixer import Padding
from tests.support.mixer_cases import dense_output, make, rows, run


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestSegments:
    @pytest.mark.parametrize("count", [1, 2, 5, 7, 12, 40])
    @pytest.mark.parametrize("padded", [False, True])
    def test_means_equal_loops(self, count, padded):
        x, lengths = draw(6, 2, 12, 3), [12, 11, 7, 5, 1, 0] if padded else [12] * 6
        padding = Padding.from_lengths(torch.tensor(lengths), 12) if padded else None
        means, exist = segment_mean(x, count, padding)
        assert means.shape == (6, 2, min(count, 12), 3)
        for row, length in enumerate(lengths):
            own = min(count, length)
            for segment in range(means.shape[2]):
                tokens = [t for t in range(length) if t * own // length == segment]
                assert bool(tokens) == (exist is None or exist[row, segment].item())
                expected = x[row, :, tokens].mean(1) if tokens else torch.zeros(2, 3, dtype=x.dtype)
                assert (means[row, :, segment] - expected).abs().max() < 1e-14

    def test_sizes_differ_by_at_most_one(self):
        padding = Padding.from_lengths(torch.arange(1, 51), 50)
        x = torch.ones(50, 1, 50, 1, dtype=torch.float64)
        numbered = torch.arange(50, dtype=torch.float64)[None, None, :, None].expand(50, 1, 50, 1)
        assert torch.equal(segment_mean(x, 8, padding)[0][:, 0, :, 0] > 0, segment_mean(x, 8, padding)[1])
        for length, (means, exist) in enumerate(zip(*segment_mean(numbered, 8, padding), strict=True), 1):
            # The means of consecutive numbers determine the sizes of the segments.
            sizes, first = [], 0.0
            for mean in means[0, exist, 0].tolist():
                sizes.append(round(2 * (mean - first) + 1))
                first += sizes[-1]
            assert sum(sizes) == length and max(sizes) - min(sizes) <= 1 and len(sizes) == min(8, length)

    def test_gradient(self):
        padding = Padding.from_lengths(torch.tensor([7, 4]), 7)
        x = draw(2, 1, 7, 2).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: segment_mean(x, 3, padding)[0], (x,))


class TestPseudoInverse:
    def test_error_decreases_with_the_iterations(self):
        a = (3 * torch.eye(12, dtype=torch.float64) + draw(2, 3, 12, 12)).softmax(-1)
        errors = [(pseudo_inverse(a, n) @ a - torch.eye(12)).norm().item() for n in range(0, 22, 3)]
        assert all(after < before for before, after in itertools.pairwise(errors) if before > 1e-10)
        assert errors[-1] < 1e-10

    def test_singular_matrix(self):
        a = torch.full((4, 4), 0.25, dtype=torch.float64)
        assert (pseudo_inverse(a, 20) - torch.linalg.pinv(a)).abs().max() < 1e-8

    def test_matrices_are_independent(self):
        a, b = draw(5, 5).softmax(-1), (9 * draw(5, 5, seed=1)).softmax(-1)
        assert (pseudo_inverse(torch.stack((a, b)), 6)[0] - pseudo_inverse(a, 6)).abs().max() < 1e-12


class TestConvolution:
    @pytest.mark.parametrize("taps", [1, 5, 33, 51])
    @pytest.mark.parametrize("n", [1, 20, 32, 33, 100])
    def test_definition(self, taps, n):
        x, filters = draw(2, 3, n, 4).requires_grad_(), draw(3, taps).requires_grad_()
        found = head_convolution(x, filters)
        expected = F.conv2d(x, filters[:, None, :, None], padding=(taps // 2, 0), groups=3)
        assert (found - expected).abs().max() < 1e-12
        weights = draw(*found.shape, seed=1)
        for a, b in zip(
            *(torch.autograd.grad((o * weights).sum(), (x, filters)) for o in (found, expected)), strict=True
        ):
            assert (a - b).abs().max() < 1e-11


class TestAttention:
    def test_many_iterations_with_one_landmark_per_token_converge_to_the_softmax(self):
        """Exact attention of short sequences is the limit of many iterations, which six iterations do not reach."""
        x = 0.5 * rows(2, 12)
        mixer, (q, k, v) = make("nystrom", landmarks=12, convolution=0), make("nystrom", convolution=0).project(x)
        weights = (q @ k.mT * mixer.head_dim**-0.5).softmax(-1)
        errors = [
            ((weights @ pseudo_inverse(weights, n) @ weights - weights).norm() / weights.norm()).item() for n in (6, 40)
        ]
        assert errors[1] < 1e-6 < 1e-3 < errors[0]
        assert (run(mixer, x) - mixer.merge(weights @ v)).abs().max() < 1e-12

    def test_short_sequences_in_a_long_batch_are_exact(self):
        mixer, x = make("nystrom", landmarks=10, convolution=0), rows(3, 40)
        full = make("transformer")
        full.load_state_dict(mixer.state_dict())
        lengths = [40, 10, 3]
        found, exact = run(mixer, x, lengths), run(full, x, lengths)
        assert (found[1, :10] - exact[1, :10]).abs().max() < 1e-12
        assert (found[2, :3] - exact[2, :3]).abs().max() < 1e-12
        assert (found[0] - exact[0]).abs().max() > 1e-3

    def test_sequences_of_a_batch_are_independent(self):
        mixer, x = make("nystrom"), rows(4, 61) * torch.tensor([1.0, 3.0, 0.1, 9.0])[:, None, None]
        lengths = [61, 50, 20, 60]
        together = run(mixer, x, lengths)
        for row, length in enumerate(lengths):
            assert (together[row, :length] - run(mixer, x[row : row + 1, :length])[0]).abs().max() < 1e-10

    @pytest.mark.parametrize("own", [{"kv_heads": 1}, {"convolution": 0}, {"iterations": 0}, {"landmarks": 1}])
    @pytest.mark.parametrize("lengths", [None, [61, 33]])
    def test_outputs_equal_the_definition(self, own, lengths):
        mixer, x = make("nystrom", **own), rows(2, 61)
        found, expected = run(mixer, x, lengths), dense_output(mixer, x, lengths)[0]
        for row, length in enumerate(lengths or [61, 61]):
            assert (found[row, :length] - expected[row, :length]).abs().max() < 1e-10

    @pytest.mark.parametrize("own", [{"landmarks": 0}, {"iterations": -1}, {"convolution": 4}, {"convolution": -3}])
    def test_invalid_options_are_rejected(self, own):
        with pytest.raises(UserError, match=rf"model\.mixer\.{next(iter(own))}"):
            make("nystrom", **own)
