"""Depth controllers around mixers of all kinds, and exact resumption of their training."""

import pytest
import torch

from lra_bench.contracts import DepthBudget, UserError
from tests.models.depth.test_early_exit import close, evaluated
from tests.models.test_feedforward import EXPERTS
from tests.support.model_cases import batch_for, model, node_file, randomise, task
from tests.support.parallel_ranks import Case, trained

CONTROLLERS = {
    name: node_file("model", name)["model"]["controller"] for name in ("universal", "depth_adaptive", "calm")
}
every_controller = pytest.mark.parametrize("controller", CONTROLLERS)
MIXERS = [
    ("global_tokens", "classification", {}),  # rows in front of the tokens
    ("longformer", "classification", {"pooling": "cls"}),
    ("mamba", "language", {}),  # memory from batch to batch
    ("mega", "classification", {"short_convolution": 3}),
    ("gru", "tagging", {}),
    ("transformer", "tagging", {"experts": EXPERTS, "residual": "rezero", "norm": "rms"}),
    ("transformer", "image", {"pooling": "cls", "norm_place": "post"}),
]
SPECS = {
    "classification": (task(), (24, 17, 1)),
    "tagging": (task("tagging"), (24, 17, 1)),
    "language": (task("language_modeling", "causal", classes=11), (24, 24, 24)),
    "image": (task(channels=2, length=25, grid=(5, 5)), (25, 25, 25)),
}


@every_controller
@pytest.mark.parametrize(("mixer", "kind", "options"), MIXERS)
def test_any_mixer_can_be_controlled(controller, mixer, kind, options):
    """Rows are predicted as alone, which also holds for those that leave the batch early, and all weights are trained.

    No memory is passed on.
    """
    spec, lengths = SPECS[kind]
    depth = 1 if controller == "universal" else 3
    position = "none" if mixer == "mamba" else "sinusoidal"
    made = model(spec, mixer, position, depth=depth, controller=CONTROLLERS[controller], **options)
    made, batch = randomise(made, deviation=0.05), batch_for(spec, lengths)
    assert not made.remembers and made.capability.family == "depth" and not made.shards
    for budget in (None, DepthBudget("threshold", 0.5) if depth > 1 else DepthBudget("steps", 2.0)):
        logits, depths = evaluated(made, batch, budget)
        alone = [evaluated(made, batch.rows(row, row + 1), budget) for row in range(3)]
        real = torch.arange(batch.width) < batch.lengths[:, None] if spec.per_token else torch.ones(3, dtype=torch.bool)
        close(logits[real], torch.cat([each for each, _ in alone])[real], 1e-9)
        assert depths[real].min() >= 1 and depths.shape == batch.targets.shape
    output = made.train()(batch)
    assert output.memory is None and ("experts" in output.losses) == ("experts" in options)
    (output.logits.square().sum() + sum(output.losses.values())).backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "overrides",
    [
        ["model=universal", "model.controller.halting_bias=1", "model.controller.steps=3"],
        ["model=depth_adaptive", "model.controller.training=mixed", "backbone.depth=3"],
    ],
)
def test_interrupted_training_resumes_exactly(tmp_path, overrides):
    """The depth of tokens depends on the data, or is random."""
    run = [*overrides, "train.steps=4", "train.evaluate_every=2"]
    whole = trained(Case(run, str(tmp_path / "whole")))
    assert trained(Case(run, str(tmp_path / "parts"), stop_after=2)) == {}
    assert trained(Case(run, str(tmp_path / "parts"))) == whole


@pytest.mark.parametrize("options", [{"mix_layers": True}, {"funnel": 3}])
def test_options_of_the_loop_over_layers_are_refused(options):
    with pytest.raises(UserError, match=r"model\.controller: is not supported with backbone\.mix_layers and"):
        model(task(), depth=3, controller=CONTROLLERS["calm"], **options)


def test_layers_with_a_controller_can_share_weights():
    options = {"depth": 4, "share_every": 2, "controller": CONTROLLERS["calm"]}
    made, batch = randomise(model(task(), **options), deviation=0.05), batch_for(task())
    assert len(made.blocks) == 2 and made(batch).logits.isfinite().all()
    separate = model(task(), **{**options, "share_every": None})
    state = made.state_dict()
    for name in [*state]:
        if name.startswith(("blocks.0.", "blocks.1.")):
            state[f"blocks.{2 + int(name[7])}{name[8:]}"] = state[name]
    separate.load_state_dict(state)
    close(separate(batch).logits, made(batch).logits, 1e-12)
