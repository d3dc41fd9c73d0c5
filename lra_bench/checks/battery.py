"""Checks of what a model computes against what it declares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property

import torch
import yaml
from torch import Tensor

from lra_bench.config.effective import mixer_capability, network_capability
from lra_bench.config.groups import option_files
from lra_bench.config.schema import CellConfig
from lra_bench.contracts import Capability, Readable, TaskSpec, UserError
from lra_bench.profiling.flops import forward_flops
from lra_bench.runtime.findings import Finding
from lra_bench.training.loss import objective

from .properties import (
    Pair,
    changed_buffers,
    gradient_from_earlier_outputs,
    memory_exponent,
    read_in_parts,
    relative_difference,
    with_more_padding,
    with_other_later_tokens,
    with_other_padding,
    without_gradient,
)
from .storage import Storages, storages
from .subject import Subject, filled_padding, located, subject

LENGTHS = (1, 2, 3, 16, 31, 64, 65, 100)
GROWTH_LENGTHS = ((256, 512), (1024, 2048))
"""Pairs of lengths at which growth is measured; the second pair only if the growth at the first is too large."""

SLACK = 0.35
"""Largest difference of a measured and a declared exponent: factors of log N are not declared."""

ROUGH = 0.25
"""Largest median relative difference of outputs in bf16 and fp32."""


class Checks:
    """The checks of the model of a configuration in one direction.

    Args:
        config: The configuration.
        task: The task of the configuration.
        causal: The direction.
        device: Device of the weights.

    Attributes:
        missing: Names of the parameters without a gradient, after the check ``gradients``.
    """

    def __init__(self, config: CellConfig, task: TaskSpec, causal: bool, device: torch.device) -> None:
        self.config, self.task, self.causal, self.device = config, task, causal, device
        self.missing: list[str] = []

    @cached_property
    def precise(self) -> Subject:
        """The network for comparisons of outputs that must be equal."""
        return subject(self.config, self.task, self.causal, self.device)

    @cached_property
    def initial(self) -> Subject:
        """The network with its initial weights in float32."""
        return subject(self.config, self.task, self.causal, self.device, precise=False)

    def sized(self, length: int) -> Subject:
        """Return a network for sequences of a length, of little width, so that the cost of its mixers dominates.

        The width is that of the configuration if the model does not support another one.
        """
        backbone = replace(self.config.backbone, max_length=None)
        width = 8 * backbone.heads
        task = replace(self.task, train_length=length)
        try:
            small = replace(self.config, backbone=replace(backbone, width=width, ff_width=width))
            return subject(small, task, self.causal, self.device, precise=False)
        except UserError:
            return subject(replace(self.config, backbone=backbone), task, self.causal, self.device, precise=False)

    def quick(self) -> Iterator[Finding]:
        """Run the checks that precede the training of a user-defined model, and yield their findings.

        Raises ``UserError`` if the model cannot be built or run.
        """
        with self._own_random_numbers():
            assert self.precise and self.initial
        padding = self.content_of_padding, self.amount_of_padding
        for check in (self.later_tokens, self.later_gradient, *padding, self.gradients):
            yield from self._guarded(check)

    def all(self) -> Iterator[Finding]:
        """Yield the findings of all checks."""
        yield from self.quick()
        for check in (
            *(self.other_rows, self.lengths, self.row_without_tokens, self.same_output, self.other_seed),
            *(self.permutation, self.buffers, self.half_precision, self.growth, self.state),
        ):
            yield from self._guarded(check)

    def _own_random_numbers(self) -> AbstractContextManager[None]:
        """Return a context that restores torch's generators at its end."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])

    def _guarded(self, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
        """Yield the findings of a check, and a finding for an exception that it raises."""
        try:
            with self._own_random_numbers(), located(self.config):
                yield from list(check())
        except UserError as error:
            yield Finding(check.__name__.replace("_", " "), str(error), False)

    @property
    def declared(self) -> Capability:
        """The declarations of the model."""
        return self.precise.capability

    def later_tokens(self) -> Iterator[Finding]:
        """Check that outputs do not depend on later tokens."""
        on = self.precise
        if not (self.causal and on.spec.per_token):
            return
        with torch.no_grad():
            pairs = [
                with_other_later_tokens(on.run, on.inputs(2), t, on.inputs(2, seed=1))
                for t in (0, on.length // 3, on.length * 2 // 3)
            ]
        advice = 'outputs depend on later tokens; mask them, or declare causal="none"'
        yield self._equal("future tokens", pairs, advice)

    def later_gradient(self) -> Iterator[Finding]:
        """Check that gradients of outputs with respect to later tokens are zero."""
        on = self.precise
        if not (self.causal and on.spec.per_token and on.continuous):
            return
        t = on.length // 2
        gradient = gradient_from_earlier_outputs(on.run, on.inputs(2), t)
        later = gradient.clone()
        later[:, : t + 1] = 0
        pairs = [(gradient, gradient - later)]
        yield self._equal("future gradient", pairs, 'gradients of outputs reach later tokens; declare causal="none"')

    def content_of_padding(self) -> Iterator[Finding]:
        """Check that outputs do not depend on the content of the padding."""
        on = self.precise
        if self.declared.padding == "none":
            return
        lengths = [on.length, on.length * 2 // 3, 1]

        def run(x: Tensor, lengths: Sequence[int] | None) -> Tensor:
            with filled_padding(on.network, next(seeds)):
                return on.run(x, lengths)

        seeds = itertools.count()
        with torch.no_grad():
            pairs = [with_other_padding(run, on.inputs(3), lengths, on.inputs(3, seed=1))]
        advice = 'outputs depend on the content of padding; exclude it by context.padding, or declare padding="none"'
        yield self._equal("content of padding", pairs, advice)

    def amount_of_padding(self) -> Iterator[Finding]:
        """Check that outputs do not depend on the amount of padding."""
        on, more = self.precise, 7
        if self.declared.padding != "amount" or self.declared.length == "fixed" or on.length <= more:
            return
        n = on.length - more
        with torch.no_grad():
            pairs = [
                with_more_padding(on.run, on.inputs(3, n), lengths, on.inputs(3, more, seed=1))
                for lengths in (None, [n, n // 2, 1])
            ]
        advice = 'outputs depend on the amount of padding; use context.padding.lengths, or declare padding="content"'
        yield self._equal("amount of padding", pairs, advice)

    def other_rows(self) -> Iterator[Finding]:
        """Check that outputs of a row do not depend on the other rows of the batch."""
        on = self.precise
        x = on.inputs(3)
        with torch.no_grad():
            y = on.run(x)[:1]
            pairs = [(y, on.run(torch.cat((x[:1], on.inputs(3, seed=1)[1:])))[:1]), (y, on.run(x[:1]))]
        advice = "outputs of a row depend on other rows of the batch; compute each row by itself"
        yield self._equal("batch", pairs, advice)

    def lengths(self) -> Iterator[Finding]:
        """Check that outputs are finite for odd lengths, lengths that no block divides, and a single token."""
        on, wrong = self.precise, []
        refuses = getattr(on.network, "supports_length", lambda length: None)
        supported = [n for n in LENGTHS if not refuses(n) and on.spec.grid is None and self.declared.length != "fixed"]
        for n in supported:
            try:
                with torch.no_grad(), located(self.config):
                    finite = bool(on.run(on.inputs(2, n)).isfinite().all())
            except UserError as error:
                wrong.append(f"{n} tokens: {error}")
            else:
                wrong += [] if finite else [f"{n} tokens: the output is not finite"]
        found = f'{"; ".join(wrong[:3])}; pad inside the model, or declare length="fixed"' if wrong else ""
        if supported:
            yield Finding("lengths", found or f"{', '.join(map(str, supported))} tokens", not wrong)

    def row_without_tokens(self) -> Iterator[Finding]:
        """Check that outputs are finite if a row of the batch has no tokens."""
        on = self.precise
        with torch.no_grad():
            finite = bool(on.run(on.inputs(2), [on.length, 0]).isfinite().all())
        advice = "the output is not finite; a softmax over padding alone is NaN: mask with a large finite number"
        yield Finding("row without tokens", "" if finite else advice, finite)

    def same_output(self) -> Iterator[Finding]:
        """Check that two runs with the same seed of torch are equal, in evaluation and in training mode."""
        on = self.precise
        x = on.inputs(2)
        with torch.no_grad():
            pairs = [(on.run(x), on.run(x))]
            on.network.train()
            pairs.append((on.run(x), on.run(x)))
            on.network.eval()
        advice = "two runs with the same seed differ; draw random numbers with torch, and keep no state in forward"
        yield self._equal("determinism", pairs, advice)

    def other_seed(self) -> Iterator[Finding]:
        """Check that outputs depend on the argument ``seed`` only through the initial parameters."""
        if self.declared.stochastic:
            return
        on, other = (subject(replace(self.config, seed=seed), self.task, self.causal, self.device) for seed in (0, 1))
        with torch.no_grad():
            pairs = [(on.run(x := on.inputs(2)), other.run(x))]
        advice = "outputs depend on the argument seed, not only on the parameters; declare stochastic=True"
        yield self._equal("seed", pairs, advice)

    def permutation(self) -> Iterator[Finding]:
        """Check that permuting the tokens permutes the outputs, without position encoding."""
        if self.causal or not self.declared.equivariant:
            return
        config = replace(self.config, position=yaml.safe_load(option_files("position")["none"].read_text("utf-8")))
        on = subject(config, self.task, self.causal, self.device)
        order = torch.randperm(on.length, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            y, permuted = on.run(x := on.inputs(2)), on.run(x[:, order])
        pairs = [(y[:, order] if on.spec.per_token else y, permuted)]
        advice = "permuting the tokens does not permute the outputs; declare equivariant=False"
        yield self._equal("permutation", pairs, advice)

    def buffers(self) -> Iterator[Finding]:
        """Check that a forward pass in training mode does not change buffers."""
        on = self.precise
        on.network.train()
        with torch.no_grad():
            changed = changed_buffers(on.network, lambda: on.run(on.inputs(2)))
        on.network.eval()
        advice = "changed inside forward; report statistics with context.report and update it in after_step"
        yield Finding("buffers", f"{', '.join(changed)}: {advice}" if changed else "", not changed)

    def gradients(self) -> Iterator[Finding]:
        """Check that the first loss and its gradients are finite, and list parameters without a gradient."""
        on = self.initial
        on.network.train()
        x = on.inputs(2)
        lengths = None if self.declared.length == "fixed" else [on.length, on.length * 2 // 3]
        output, batch = on.output(x, lengths), on.batch(x, lengths)
        loss = objective(output, batch)
        if not loss.requires_grad:
            yield Finding("gradient", "the output is detached from all parameters; remove .detach() and no_grad", False)
            return
        loss.backward()
        on.network.eval()
        finite = bool(loss.isfinite()) and all(
            bool(each.grad.isfinite().all()) for each in on.network.parameters() if each.grad is not None
        )
        yield Finding("finite", "" if finite else "loss or gradient of the initial weights is not finite", finite)
        self.missing = without_gradient(on.network)
        names = f"{', '.join(self.missing[:4])}{' …' if len(self.missing) > 4 else ''}"
        yield Finding("parameters without gradient", f"{len(self.missing)} ({names})" if self.missing else "none")

    def half_precision(self) -> Iterator[Finding]:
        """Check that initial outputs in bf16 are close to those in fp32."""
        on = self.initial
        x = on.inputs(2)
        with torch.no_grad():
            exact = on.run(x)
            with torch.autocast(on.device.type, torch.bfloat16):
                rounded = on.run(x).float()
        error = ((rounded - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-6)).nanmedian().item()
        ok = bool(rounded.isfinite().all()) and error <= ROUGH
        found = f"{error:.1%} from fp32" if rounded.isfinite().all() else "the output is not finite"
        yield Finding("bf16", found if ok else f"{found}; compute sums and exponentials in float32", ok)

    def growth(self) -> Iterator[Finding]:
        """Check that tensors and the number of operations grow with length at most as declared."""
        declared = self.declared
        if self.precise.spec.grid is not None:
            return
        memory = memory_exponent(declared.materialises, declared.growth)
        # A window that covers all tokens at the first lengths is quadratic there.
        elements = [0]
        for pair in GROWTH_LENGTHS:
            if not (elements := _growing_storages(self.sized, pair, memory)):
                break
        advice = f"a tensor has {max(elements, default=0):,} elements at {pair[1]} tokens and grows faster than "
        advice += f'N^{memory:g}; compute it in blocks, or declare materialises="maps" and growth=2'
        yield Finding("storage", advice if elements else "", not elements)
        for pair in GROWTH_LENGTHS:
            if (exponent := _operations_exponent(self.sized, pair)) <= declared.growth + SLACK:
                break
        ok = exponent <= declared.growth + SLACK
        found = f"operations ~ N^{exponent:.1f} from {pair[0]} to {pair[1]} tokens, declared growth={declared.growth:g}"
        yield Finding("growth", found if ok else f"{found}; declare growth={round(exponent * 2) / 2:g}", ok)

    def state(self) -> Iterator[Finding]:
        """Check that reading a sequence in parts equals reading it at once."""
        on = self.precise
        x = on.inputs(2)
        batch, network = on.batch(x), on.network
        parts = [length for length in (on.length // 3, 1, on.length - on.length // 3 - 1) if length]
        advice = "reading in parts differs from reading at once; return all that later tokens need in context.memory"
        with torch.no_grad():
            if isinstance(network, Readable):
                if reason := network.refuses_steps():
                    yield Finding("state", f"none: {reason}")
                    return
                whole, _ = read_in_parts(network, batch, [on.length])
                yield self._equal("state", [(whole, read_in_parts(network, batch, parts)[0])], advice)

    def _equal(self, what: str, pairs: Sequence[Pair], advice: str) -> Finding:
        """Return the finding that the tensors of each pair are equal."""
        worst = max(
            (relative_difference(a, b) for a, b in pairs), key=lambda value: math.inf if value != value else value
        )
        ok = worst <= self.precise.tolerance
        return Finding(what, "" if ok else f"{advice} (relative difference {worst:.1g})", ok)


def _growing_storages(sized: Callable[[int], Subject], pair: tuple[int, int], exponent: float) -> list[int]:
    """Return the elements of tensors of about N x N that grow faster than N ** ``exponent``, at the second length."""
    sizes = []
    for n in pair:
        on = sized(n)
        on.network.train()
        sizes.append(storages(lambda on=on, n=n: on.run(on.inputs(1, n))).sizes)
    short, long = sizes
    if len(short) != len(long):  # a loop over positions
        short, long = [max(short)], [max(long)]
    limit = (pair[1] / pair[0]) ** (exponent + SLACK)
    return [b for a, b in zip(short, long, strict=True) if b > limit * a and b >= pair[1] ** 2 / 4]


def _operations_exponent(sized: Callable[[int], Subject], pair: tuple[int, int]) -> float:
    """Return the growth exponent of the operations of a forward pass: FLOPs, or elements of results if it is larger."""
    counts = []
    for n in pair:
        on = sized(n)
        with torch.no_grad(), Storages() as probe:
            on.run(on.inputs(1, n))
        counts.append((forward_flops(on.network, on.batch(on.inputs(1, n))), probe.produced))
    ratios = [b / a for a, b in zip(*counts, strict=True) if a]
    return math.log(max(ratios)) / math.log(pair[1] / pair[0])


def check_model(config: CellConfig, task: TaskSpec) -> list[Finding]:
    """Check the model of a configuration in each direction that it declares.

    Args:
        config: The configuration.
        task: The task of the configuration.

    Returns:
        The findings; those of two directions begin with the direction. Raises ``UserError`` if the model cannot be
        built.
    """
    directions, found = declared_directions(config), []
    for causal in directions:
        prefix = f"{'causal' if causal else 'bidirectional'}: " if len(directions) > 1 else ""
        findings = Checks(config, task, causal, torch.device("cpu")).all()
        found += [replace(each, what=f"{prefix}{each.what}") for each in findings]
    return found


def check_before_training(config: CellConfig, task: TaskSpec, causal: bool, device: torch.device) -> int:
    """Check a user-defined model before it is trained.

    Args:
        config: The configuration.
        task: The task.
        causal: Direction of the model.
        device: Device of the weights.

    Returns:
        The number of parameters without a gradient.

    Raises:
        UserError: If a declaration is wrong, or the first output or gradient is not finite.
    """
    checks = Checks(config, task, causal, device)
    for each in checks.quick():
        if each.ok is False:
            raise UserError(f"model ({config.model['label']}): {each.what}: {each.found}")
    return len(checks.missing)


def declared_directions(config: CellConfig) -> list[bool]:
    """Return the values of ``causal`` that the model declares, false first; both for a model without declarations."""
    node = config.model.get("mixer")
    declared = mixer_capability(node) if node else network_capability(str(config.model["network"]["_target_"]))
    if declared is None:
        return [False]
    return [*([False] if declared.bidirectional else []), *([True] if declared.causal == "exact" else [])]
