"""Losses on heads: which mixers support them, and that they change only the loss."""

from typing import ClassVar

import pytest
import torch

from lra_bench.contracts import UserError
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from lra_bench.models.heads.choice import LOSSES
from lra_bench.models.mixer import HeadMixer
from tests.support.mixer_cases import CASES, HEADS, NODES, SPECS, WIDTH, context, make, rows, run
from tests.support.model_cases import batch_for, model, task
from tests.support.storage import exponents, held_for_backward

POSITION, SUBSPACE = ({"name": "disagreement", "of": of} for of in ("position", "subspace"))
HEADED = [(name, causal) for name, causal in CASES if isinstance(make(name, causal=causal), HeadMixer)]


def losses(mixer, x, lengths=None):
    """Return the losses that the mixer adds in training."""
    training = mixer.training
    added = mixer.train()(x, context(x.shape[1], lengths))[1].losses
    mixer.train(training)
    return added


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "causal"), HEADED)
def test_every_head_mixer_adds_or_rejects_the_loss(name, causal):
    """A requested loss must not be omitted silently."""
    for choice in ("disagreement", "pattern_guided", POSITION):
        try:
            mixer = make(name, causal=causal, head_losses=choice)
        except UserError as error:
            kind = "heads" if "does not expose its heads" in str(error) else "attention weights"
            assert str(error).startswith("model.mixer.head_losses=") and kind in str(error)
            assert kind == "heads" or choice != "disagreement"
            continue
        assert not set(losses(make(name, causal=causal, head_losses=None), rows(2, 9))) & set(LOSSES)
        key = choice if isinstance(choice, str) else "disagreement"
        loss = losses(mixer, rows(2, 70), [70, 33])[key]
        assert loss.dim() == 0 and loss.isfinite() and loss > 0
        loss.backward()


def test_common_mixers_support_the_losses():
    names = {name for name, causal in HEADED if not (SPECS[name].bidirectional and causal)}
    rejected = set()
    for name in names:
        try:
            make(name, causal=not SPECS[name].bidirectional, head_losses="disagreement")
        except UserError:
            rejected.add(name)
    assert not rejected & {"transformer", "mqa", "local", "bigbird", "longformer", "linformer", "nystrom", "performer"}
    for name in ("transformer", "score_additive", "score_reduced", "collaborative"):
        make(name, head_losses=POSITION)
    for name in ("local", "performer", "talking_heads"):
        with pytest.raises(UserError, match=r"head_losses=disagreement: .* has no attention weights"):
            make(name, head_losses=POSITION)


class OtherWeights(SoftmaxAttention):
    """Overrides ``attend``, so that the inherited ``use_weights`` returns other weights."""

    def attend(self, q, k, v, context):
        return super().attend(-q, k, v, context)


class WithoutLosses(SoftmaxAttention):
    """Overrides ``forward`` without adding losses."""

    def forward(self, x, context):
        return self.merge(self.attend(*self.project(x), context)), context


class OnlyDeclared(WithoutLosses):
    """Declares that it exposes its heads, but the class that defines its ``forward`` does not."""

    shows_heads: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("kind", "choice"), [(OtherWeights, POSITION), (WithoutLosses, "disagreement"), (OnlyDeclared, "disagreement")]
)
def test_overridden_methods_are_not_assumed_to_expose_heads(kind, choice):
    with pytest.raises(UserError, match=rf"model\.mixer\.head_losses=disagreement: {kind.__name__}"):
        kind(WIDTH, HEADS, head_losses=choice)


@pytest.mark.parametrize("choice", ["disagreement", "pattern_guided", POSITION])
def test_outputs_are_unchanged_and_evaluation_adds_no_loss(choice):
    x = rows(2, 40)
    mixer, plain = make("transformer", head_losses=choice), make("transformer")
    assert torch.equal(run(mixer, x), run(plain, x))
    assert not mixer(x, context(40))[1].losses
    assert torch.equal(run(mixer.train(), x), run(plain.train(), x))


@pytest.mark.parametrize("choice", ["disagreement", "pattern_guided", POSITION])
def test_weight_scales_the_loss_and_layers_add_up(choice):
    node = {"name": choice} if isinstance(choice, str) else choice
    x = rows(2, 40)
    found = [losses(make("transformer", head_losses={**node, "weight": w}), x)[node["name"]] for w in (0.0, 1.0, 3.0)]
    assert found[0] == 0 and found[2].item() == pytest.approx(3 * found[1].item())
    network = model(task(), own={"head_losses": choice}).train()
    losses_by_layer = []
    for mixer in network.mixers:
        mixer.register_forward_hook(
            lambda module, args, result: losses_by_layer.append(result[1].losses[node["name"]].item())
        )
    total = network(batch_for(task())).losses[node["name"]]
    assert len(losses_by_layer) == 2 and total.item() == losses_by_layer[1] > losses_by_layer[0] > 0


@pytest.mark.parametrize("choice", ["disagreement", SUBSPACE, POSITION, "pattern_guided"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_has_no_effect_and_micro_batches_average(choice, causal):
    mixer, x = make("transformer", causal=causal, head_losses=choice), rows(4, 80)
    lengths = [80, 33, 1, 50]
    (whole,) = losses(mixer, x, lengths).values()
    dirty = torch.where(context(80, lengths).padding.valid[..., None], x, 1e3 * rows(4, 80, seed=1))
    (again,) = losses(mixer, torch.cat((dirty, rows(4, 7)), 1), lengths).values()
    assert again.item() == pytest.approx(whole.item(), rel=1e-9)
    parts = [next(iter(losses(mixer, x[at : at + 2], lengths[at : at + 2]).values())) for at in (0, 2)]
    assert (sum(parts) / 2).item() == pytest.approx(whole.item(), rel=1e-9)
    (empty,) = losses(mixer, x, [80, 0, 0, 0]).values()
    assert empty.isfinite()


@pytest.mark.parametrize("choice", ["disagreement", "pattern_guided", POSITION])
@pytest.mark.parametrize("padded", [False, True])
def test_memory_is_linear_in_the_length(choice, padded):
    mixer = make("transformer", head_losses=choice, dropout=0.1, dtype=torch.float32)

    def at(n):
        x = rows(1, n, dtype=torch.float32).requires_grad_()
        (loss,) = losses(mixer.train(), x, [n // 2] if padded else None).values()
        return loss

    assert max(exponents(at, (256, 512))[0]) < 1.1
    held = [held_for_backward(lambda n=n: at(n)) for n in (256, 512)]
    assert held[1] < 2.2 * held[0]


def test_several_losses_and_explicit_targets():
    own = {"_target_": LOSSES["disagreement"], "of": "subspace"}
    assert set(losses(make("transformer", head_losses=["pattern_guided", own]), rows(1, 9))) == set(LOSSES)
    with pytest.raises(UserError, match=r"model\.mixer\.head_losses=agreement: must be one of disagreement"):
        make("transformer", head_losses="agreement")
    with pytest.raises(UserError, match=r"model\.mixer\.head_losses\.weight=-1"):
        make("transformer", head_losses={"name": "disagreement", "weight": -1})
    assert "head_losses" in NODES["disagreement"]
