"""Roles of the parameters of all systems, stored in ``parameter_roles.json``.

``python -m tests.support.parameter_roles`` writes the table: for each parameter its role, whether weight decay applies
to it, why if that does not follow from the role, and the systems that have it.
"""

import json
from collections import defaultdict
from functools import partial
from pathlib import Path

from torch import nn

from lra_bench.build import build
from lra_bench.config.groups import option_files
from lra_bench.training.optimizer import parameter_groups
from tests.support.golden_models import BACKBONES, KINDS, small
from tests.support.mixer_cases import NODES, POSITIONS
from tests.support.model_cases import initial_model, node_file

FILE = Path(__file__).with_suffix(".json")
COMMAND = "python -m tests.support.parameter_roles"
OTHER = {
    "gate": ("tagging", {"gate": "gru"}),
    "short convolution": ("tagging", {"short_convolution": 3}),
    "weighted branches": ("tagging", {"own": {"merge": "weighted_branches"}, "feed_forward": False}),
}
SYSTEMS = [
    *sorted(option_files("model")),
    *(f"position={name}" for name in POSITIONS),
    *(f"backbone={name}" for name in (*BACKBONES, *OTHER)),
]
DECAYING = ("projection", "convolution")
"""Roles to which weight decay applies."""

ROLES = {
    "bias": """Experts.before_bias Experts.after_bias DenseSynthesizer.row_bias FactorisedDenseSynthesizer.coarse_bias
        FactorisedDenseSynthesizer.fine_bias SinkhornAttention.row_bias SortCut.row_bias ETC.label_bias SLSTM.bias
        TransformerXLPosition.content TransformerXLPosition.place B2S6.bias Mega.shifts MegaChunk.shifts
        WeightedBranches.before_bias WeightedBranches.after_bias""",
    "gain": """RFA.scale GatedRFA.scale Hyena.skip Mega.scales MegaChunk.scales TimeMix.bonus""",
    "embedding": """BPTransformer.types ETC.labels GlobalTokens.rows Luna.packed InducedSetAttention.points
        T5Position.table ShawPosition.table ConditionalPrior.task FactorisedEmbedding.vectors
        AdaptiveEmbedding.vectors.* ProductKeyMemory.values""",
    "state": """MovingAverage.amount MovingAverage.damping RandomSynthesizer.scores FactorisedRandomSynthesizer.left
        FactorisedRandomSynthesizer.right ConditionalPrior.blocks Differential.for_queries Differential.for_keys
        LongConv.kernel S4.frequency S4.input S4.log_decay S4.low_rank S4D.frequency S4D.input S4D.log_decay
        DSS.log_step DSS.readout Mamba.log_rate SignedMamba.log_rate LogLinearMamba2.level_scale B2S6.choice
        TimeMix.shares""",
    "convolution": """Hyena.short LightConvolution.kernel SGConv.pieces ShortConvolution.kernel ShortFilter.weight
        MemoryCompressed.compress_key MemoryCompressed.compress_value Nystromformer.filters Summaries.weight
        CanonLayer.weight Convolutions.depthwise""",
    "projection": """GatedMLP.weights MLPMixer.before MLPMixer.after AdditiveAttention.for_key
        AdditiveAttention.for_query AdditiveAttention.weigh SoftmaxAttention.between SoftmaxAttention.reduce_key
        SoftmaxAttention.reduce_query DynamicRouting.votes ExpectationMaximisation.votes CollaborativeHeads.mixing
        TalkingHeads.mix_scores TalkingHeads.mix_weights Linformer.weights TransformerXLPosition.relative
        FactorisedDenseSynthesizer.coarse FactorisedDenseSynthesizer.fine LocalGaussian.centre_hidden
        LocalGaussian.centre_read LocalGaussian.width_read DenseSynthesizer.rows BlockDiagonal.weight SLSTM.recurrent
        SinkhornAttention.rows SortCut.rows B2S6.read B2S6.write Mamba.choice Mamba.step SignedMamba.choice
        SignedMamba.step S4.readout S4D.readout MovingAverage.spread MovingAverage.readout Experts.before Experts.after
        FactorisedEmbedding.projection AdaptiveEmbedding.projections.* ProductKeyMemory.keys GRUGate.weight
        WeightedBranches.outputs WeightedBranches.before WeightedBranches.after""",
}
"""Roles of parameters of two or more dimensions that belong to classes of lra-bench, by class and name."""

TYPES = {
    nn.Embedding: "embedding",
    nn.Conv1d: "convolution",
    nn.Conv2d: "convolution",
    nn.Linear: "projection",
    nn.RNNBase: "projection",
}
"""Roles of parameters of torch's own modules that have two or more dimensions."""

REASONS = {
    "SLSTM.recurrent": "the authors' code decays parameters named weight only",
    "ImplicitFilters.": "the authors' code does not decay the network of the filters",
    "SharedByDirections.weight": "the authors' code counts it among the parameters of the state",
    **dict.fromkeys(
        ("MinGRU.input.weight", "MinLSTM.input.weight", "SignedMinGRU.input.weight"),
        "the authors' code of minGRU decays no weights of gates and candidates",
    ),
    "LowRank.": "the authors' code decays no map of low rank",
}
"""Why weight decay does not apply to projections, by the start of their name."""


def built(system):
    """Return a small model of a system: a model, a Transformer with a position encoding or with backbone options."""
    group, _, name = system.rpartition("=")
    if group == "position":
        return initial_model(KINDS["classification"][0], position=name)
    if group == "backbone":
        kind, options = {**BACKBONES, **OTHER}[name]
        return initial_model(KINDS[kind][0], **options)
    content = node_file("model", system)
    model = content["model"]
    spec = KINDS["language" if "retrieval" in model else "classification"][0]
    if "network" in model:
        return build(small(model["network"]), nn.Module, "model.network", spec=spec)
    make = partial(
        initial_model,
        spec,
        system if system in NODES else "transformer",
        content.get("backbone", {}).get("position", "sinusoidal").partition("|")[0],
        **({"controller": model["controller"]} if "controller" in model else {}),
    )
    if "retrieval" not in model:
        return make()
    return build(
        model["retrieval"],
        nn.Module,
        "model.retrieval",
        network=make(),
        another=lambda **changes: make(**changes),
        restore=None,
        spec=spec,
        seed=0,
    )


def parameters(network, owner="", path=()):
    """Yield the name of each trained parameter, the class of lra-bench and the path in it, with the parameter."""
    if type(network).__module__.startswith("lra_bench.") or not owner:
        owner, path = type(network).__name__, ()
    for name, parameter in network.named_parameters(recurse=False):
        if parameter.requires_grad:
            parts = ["*" if part.isdigit() else part for part in (*path, name)]
            yield ".".join([owner, *parts]), network, parameter
    for name, child in network.named_children():
        yield from parameters(child, owner, (*path, name))


def role(name, module, parameter):
    """Return the role of a parameter; None if it has two or more dimensions and no role is listed."""
    if parameter.dim() < 2:
        return "vector"
    listed = [each for each, names in ROLES.items() if name in names.split()]
    return next(iter(listed or [each for kind, each in TYPES.items() if isinstance(module, kind)]), None)


def rows(systems):
    """Return role, whether weight decay applies and the reason of a difference by system and parameter."""
    result = {}
    for system in systems:
        network = built(system)
        groups = parameter_groups(network, 1.0, 1.0)
        decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
        for name, module, parameter in parameters(network):
            kind, decays = role(name, module, parameter), id(parameter) in decayed
            reason = next((text for start, text in REASONS.items() if name.startswith(start)), "")
            row = f"{kind}, {'decays' if decays else 'does not decay'}"
            result[system, name] = row if decays == (kind in DECAYING) else f"{row}: {reason}"
    return result


def stored():
    """Return the stored rows by system and parameter."""
    table = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        (system, name): row for name, kinds in table.items() for row, systems in kinds.items() for system in systems
    }


def main():
    """Store the rows of all systems."""
    table = defaultdict(lambda: defaultdict(list))
    for (system, name), row in rows(SYSTEMS).items():
        table[name][row].append(system)
    lines = [f"{json.dumps(name)}: {json.dumps(kinds)}" for name, kinds in sorted(table.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} parameters of {len(SYSTEMS)} systems in {FILE}")


if __name__ == "__main__":
    main()
