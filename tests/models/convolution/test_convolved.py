"""Common behaviour of mixers that convolve channels with kernels of the length of the sequence."""

import pytest
import torch

from lra_bench.build import load_class
from lra_bench.models.convolution.convolved import Convolved
from lra_bench.models.mixer import Mixer
from lra_bench.training.optimizer import parameter_groups
from tests.support.mixer_cases import NODES, context, make, rows, run

CONVOLVED = [name for name, node in NODES.items() if issubclass(load_class(node["_target_"], Mixer, name), Convolved)]
BY_DIRECTION = {"s4": "readout", "s4d": "readout", "dss": "readout", "sgconv": "pieces", "long_conv": "kernel"}
"""Name of the parameter of each model that is not shared by the two kernels; its first axis is the direction."""


@pytest.mark.parametrize("name", [*CONVOLVED, "hyena"])
def test_optimizer_hints_of_kernel_parameters_are_applied(name):
    mixer = make(name)
    slow = {id(p) for group in parameter_groups(mixer, 1e-2, 0.1) if group["lr"] == 1e-3 for p in group["params"]}
    decaying = {id(p) for group in parameter_groups(mixer, 1e-2, 0.1) if group["weight_decay"] for p in group["params"]}
    hinted = {module: module.optimizer_hints for module in mixer.modules() if hasattr(module, "optimizer_hints")}
    found = {id(getattr(module, key)): hint for module, hints in hinted.items() for key, hint in hints.items()}
    assert slow == {each for each, hint in found.items() if "max_lr" in hint} and slow
    assert not decaying & {each for each, hint in found.items() if "weight_decay" in hint}


@pytest.mark.parametrize("name", CONVOLVED)
class TestTwoSides:
    def test_second_kernel_is_mirrored_and_starts_at_lag_one(self, name):
        mixer, causal_mixer, own = make(name), make(name, causal=True), BY_DIRECTION[name]
        causal_state = causal_mixer.state_dict()
        causal_mixer.load_state_dict(
            {name: each[-len(causal_state[name]) :] for name, each in mixer.state_dict().items()}
        )
        with torch.no_grad():
            getattr(mixer, own)[0] = 0
        x = rows(2, 40).mT
        behind = mixer.respond(x, context(40))[0]
        mirrored = causal_mixer.respond(x.flip(-1), context(40))[0].flip(-1)
        assert mirrored.abs().max() > 1e-2
        assert (behind[..., :-1] - mirrored[..., 1:]).abs().max() < 1e-12
        assert behind[..., -1].abs().max() < 1e-12

    def test_single_token_uses_only_lag_zero(self, name):
        mixer, x = make(name), rows(2, 1)
        before = run(mixer, x)
        with torch.no_grad():
            getattr(mixer, BY_DIRECTION[name])[1] += 1
        assert (run(mixer, x) - before).abs().max() < 1e-12
