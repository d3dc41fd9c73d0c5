"""Universal Transformer: one block applied repeatedly, with a fixed number of steps or adaptive computation time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import Capability, DepthBudget, UserError

from ..embedding import DEVIATION
from ..heads.head_loss import mean_of_tokens
from ..mixer import Context
from ..positions.sinusoidal import sinusoids
from .controller import OPTION, Controller, Pass, real_tokens, select_rows

HALTING = ("act", "fixed")
WEIGHTINGS = ("accumulated", "basic")
HALTING_RATE = 0.1
"""Learning rate of the halting unit, as a fraction of that of the network."""
TIME_SIGNALS = ("sinusoidal", "none")


class Universal(Controller):
    """Apply the blocks of the network up to ``steps`` times with the same weights.

    Dehghani et al. 2019, arXiv 1807.03819, with adaptive computation time of Graves 2016, arXiv 1603.08983. Before
    each step, sinusoids of the step number are added to the hidden states and, from the second step on, the
    positions if their encoding is added to the embeddings. With ``halting=act`` a token stops in the step in which
    the sum of its halting probabilities p_t = sigmoid(w·norm(h_(t-1)) + b) would exceed 1 - ``epsilon``, or in the
    last one. The weight w_t of a step is p_t, that of the last step of the token the remainder R, so that the
    weights sum to one. A token that has stopped keeps its hidden state, from which other tokens compute keys and
    values. Adds ``ponder_weight`` times the mean of N + R over tokens to the loss in training; N is the number of
    steps, which has no gradient. In evaluation mode, sequences whose tokens have all stopped are no longer
    computed. O(steps) times the time and memory of the blocks; the steps end when all tokens have stopped.

    Deviations from the paper: the default of ``halting_bias`` is -1 instead of 1, with which every token stops after
    two steps at the start, and that of ``ponder_weight`` 0.001 instead of 0.01. The halting unit reads the hidden
    states after a norm without weights, and learns at a tenth of the rate of the network: without both, all tokens of
    ``task=listops protocol=quick`` stopped in the second step after 400 training steps (mean 2.00; 3.21 with both). The
    initial w is zero. The default ``accumulated`` is that of Graves, y = Σ w_t h_t; the authors' code computes
    ``basic``, y_t = w_t h_t + (1 - w_t) y_(t-1), from y_0 = 0. The transition function is the feed-forward network of
    the block. The time signal is scaled like the position encoding.

    Deviations from the authors' code: a token that has stopped keeps its state, as in the paper, where that code
    computes further states for it, to which other tokens attend; a token that reaches the last step uses the remainder
    there, so that its weights sum to one; and the precedence error in ``act_basic`` (transformed*w + previous*1 - w) is
    not reproduced.

    Args:
        steps: Largest number of steps T.
        halting: ``act``, or ``fixed`` for T steps of every token and the state after the last one.
        weighting: ``accumulated`` or ``basic``.
        halting_bias: Initial bias b.
        ponder_weight: Weight of the ponder loss.
        epsilon: Margin below one at which a token stops.
        time_signal: ``sinusoidal`` or ``none``.
        **common: Arguments of ``Controller``.
    """

    spec = Capability(
        family="depth",
        paper="Universal Transformers",
        arxiv="1807.03819",
        code="tensorflow/tensor2tensor@bafdc1b:tensor2tensor/models/research/universal_transformer_util.py",
    )

    def __init__(
        self,
        *,
        steps: int = 8,
        halting: str = "act",
        weighting: str = "accumulated",
        halting_bias: float = -1.0,
        ponder_weight: float = 0.001,
        epsilon: float = 0.01,
        time_signal: str = "sinusoidal",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        choices = {"halting": HALTING, "weighting": WEIGHTINGS, "time_signal": TIME_SIGNALS}
        given = {"halting": halting, "weighting": weighting, "time_signal": time_signal}
        for name, known in choices.items():
            if given[name] not in known:
                raise UserError(f"{OPTION}.{name}={given[name]}: must be one of {', '.join(known)}")
        if steps < 1:
            raise UserError(f"{OPTION}.steps={steps}: must be at least 1")
        if not 0 < epsilon < 1:
            raise UserError(f"{OPTION}.epsilon={epsilon}: must be between 0 and 1")
        if ponder_weight < 0:
            raise UserError(f"{OPTION}.ponder_weight={ponder_weight}: must not be negative")
        # With one step there is nothing to decide, and w would have no gradient.
        self.steps, self.adaptive, self.weighting = steps, halting == "act" and steps > 1, weighting
        self.ponder_weight, self.epsilon, self.timed = ponder_weight, epsilon, time_signal != "none"
        if self.adaptive:
            self.halt = nn.Linear(self.width, 1)
            nn.init.zeros_(self.halt.weight)
            nn.init.constant_(self.halt.bias, halting_bias)
            self.halt.optimizer_hints = {name: {"lr_factor": HALTING_RATE} for name in ("weight", "bias")}  # type: ignore[assignment]

    @property
    def full_depth(self) -> int:
        """Number of blocks of T steps."""
        return self.steps * self.depth

    @property
    def adapts_by(self) -> str:
        """What has a depth of its own: ``token``."""
        return "token"

    def depth_budgets(self) -> list[DepthBudget]:
        """Return the policy of the training, and powers of two as largest numbers of steps, up to 2 T."""
        limits = {2**power for power in range(self.steps.bit_length())} | {self.steps, 2 * self.steps}
        by_steps = [DepthBudget("steps", float(limit)) for limit in sorted(limits - {self.steps})]
        before = [budget for budget in by_steps if budget.value is not None and budget.value < self.steps]
        return [*before, DepthBudget("trained"), *by_steps[len(before) :]]

    def forward(self, run: Pass) -> tuple[Tensor, Context]:
        """Return the weighted states (R, P + N, E), or those after the last step, with the ponder loss in training."""
        steps = self.steps
        if self.budget is not None and self.budget.kind == "steps" and self.budget.value is not None:
            steps = int(self.budget.value)
        return self._halting(run, steps) if self.adaptive else self._fixed(run, steps)

    def _fixed(self, run: Pass, steps: int) -> tuple[Tensor, Context]:
        x, context = run.x, run.context
        for step in range(steps):
            x, context = self._step(run, self._with_signals(run, x, step), context)
        if not self.training:
            self.record(torch.full(x.shape[:2], float(steps * self.depth)), context)
        return x, context

    def _halting(self, run: Pass, steps: int) -> tuple[Tensor, Context]:
        x, context = run.x, run.context
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if context.padding is not None:
            running = context.padding.valid
        rows = torch.arange(len(x), device=x.device)  # sequences that are still computed
        result, counts, remainders = torch.zeros_like(x), rows.new_zeros(x.shape[:2]), None
        y = torch.zeros_like(x)
        total = x.new_zeros(x.shape[:2], dtype=torch.promote_types(x.dtype, torch.float32))
        used = torch.zeros_like(counts)
        for step in range(steps):
            inputs = self._with_signals(run, x, step, rows)
            weights, stops = self._weights(inputs, total, running, step == steps - 1)
            if self.training:
                left = (1 - total) * stops
                remainders = left if remainders is None else remainders + left
            total, used = total + weights, used + running
            new, context = self._step(run, inputs, context)
            share = weights[..., None].to(new.dtype)
            y = y + share * (new if self.weighting == "accumulated" else new - y)
            x = torch.where(running[..., None], new.to(x.dtype), x)
            running = running & ~stops
            alive = running.any(1)
            if bool(alive.any() if self.training else alive.all()):
                continue
            if self.training:
                break
            done, kept = rows[~alive], alive.nonzero()[:, 0]
            result[done], counts[done] = y[~alive].to(result.dtype), used[~alive]
            if not len(kept):
                break
            rows, x, y, total, used, running = (each[kept] for each in (rows, x, y, total, used, running))
            context = select_rows(context, kept)
        if self.training:
            assert remainders is not None
            context = self._with_ponder_loss(context, used + remainders)
            return y, context
        self.record(counts * self.depth, run.context)
        return result, context.replace(padding=run.context.padding, positions=run.context.positions)

    def _weights(self, inputs: Tensor, total: Tensor, running: Tensor, last: bool) -> tuple[Tensor, Tensor]:
        """Return the weights (R, P + N) of a step, and which tokens stop in it.

        ``total`` is the sum of the weights so far and ``running`` tells which tokens have not stopped.
        """
        p = self.halt(F.layer_norm(inputs, (self.width,)))[..., 0].to(total.dtype).sigmoid()
        stops = running if last else running & (total + p > 1 - self.epsilon)
        return torch.where(stops, 1 - total, p) * running, stops

    def _step(self, run: Pass, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return x and the context after all blocks."""
        for number in range(len(run.blocks)):
            x, context = run.layer(number, x, context)
        return x, context

    def _with_signals(self, run: Pass, x: Tensor, step: int, rows: Tensor | None = None) -> Tensor:
        """Return the hidden states x of the sequences ``rows`` with the signals of the step added."""
        if step and run.positions is not None:
            added = run.positions(step)
            x = x + (added if rows is None or len(added) == 1 else added[rows])
        if not self.timed:
            return x
        signal = sinusoids(x.new_full((), step + 1, dtype=torch.float64), self.width)
        return x + (DEVIATION * signal).to(x.dtype)

    def _with_ponder_loss(self, context: Context, ponder: Tensor) -> Context:
        """Return the context with the ponder loss, the mean of N + R (R, P + N) over the tokens."""
        ponder = ponder[:, context.prefix :]
        return context.add_loss("ponder", self.ponder_weight * mean_of_tokens(ponder, real_tokens(context, ponder)))
