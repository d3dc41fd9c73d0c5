"""Outputs of mixers, networks, positions and the backbone on fixed inputs, as a few numbers."""

from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import torch
from torch import nn

from lra_bench.build import build, known_options, load_class
from lra_bench.config.groups import option_files
from lra_bench.models.mixer import Context, Mixer, Padding, name_modules
from lra_bench.models.positions.position import Position
from tests.oracles import SMALL
from tests.support.mixer_cases import CASES as DIRECTIONS
from tests.support.mixer_cases import HEADS, NODES, POSITIONS, WIDTH, rows
from tests.support.model_cases import batch_for, node_file, randomise, split, task

GRID = (12, 12)
LENGTH = GRID[0] * GRID[1]
LENGTHS = [LENGTH, 97]
LAYERS = 2
NOISE = 0.1
SIZES = {"width": WIDTH, "heads": HEADS, "depth": LAYERS, "ff_width": 24, "dropout": 0.0}
KINDS = {
    "classification": (task(length=LENGTH), LENGTHS),
    "matching": (task("matching", classes=2, length=LENGTH), (LENGTHS, LENGTHS[::-1])),
    "tagging": (task("tagging", length=LENGTH), LENGTHS),
    "language": (task("language_modeling", "causal", classes=11, length=LENGTH), LENGTHS),
    "image": (task(channels=2, length=LENGTH, grid=GRID), [LENGTH] * 2),
}
DEPTH = "lra_bench.models.depth"
BACKBONES: dict[str, tuple[str, dict]] = {
    **{kind: (kind, {}) for kind in KINDS},
    "post rms": ("classification", {"norm_place": "post", "norm": "rms", "activation": "relu", "pooling": "last"}),
    "scale cls": ("classification", {"norm": "scale", "pooling": "cls", "head_dim": 5}),
    "universal": ("classification", {"depth": 1, "controller": {"_target_": f"{DEPTH}.universal.Universal"}}),
    "universal fixed": (
        "language",
        {"controller": {"_target_": f"{DEPTH}.universal.Universal", "halting": "fixed", "steps": 3}},
    ),
    "depth_adaptive": ("tagging", {"controller": {"_target_": f"{DEPTH}.depth_adaptive.DepthAdaptive"}}),
    "calm": ("matching", {"controller": {"_target_": f"{DEPTH}.calm.Calm"}}),
    "batch": ("classification", {"norm": "batch", "feed_forward_chunks": 3}),
    "reversible": ("tagging", {"reversible": True, "causal": True}),
    "gated": ("classification", {"norm": "rms", "activation": "swiglu"}),
    "concatenation": ("matching", {"pair_features": "concatenation", "feed_forward": False}),
    "experts": (
        "classification",
        {
            "experts": {"count": 3, "every": 2, "z_loss": 0.1},
            "product_keys": {"layer": 1, "keys": 4, "top_k": 3},
        },
    ),
    "evolved": ("tagging", {"block": "evolved", "residual": "rezero", "norm": "none", "mix_layers": True}),
    "shared": ("classification", {"share_every": 1, "funnel": 2, "activation": "liglu"}),
    "adaptive": (
        "language",
        {
            "embedding": {"cutoffs": [3]},
            "output": {"kind": "adaptive", "cutoffs": [2, 5]},
            "token_order": [4, 1],
        },
    ),
    "mixture": (
        "language",
        {
            "embedding": {"rank": 3},
            "output": {"kind": "mixture", "components": 2},
        },
    ),
    "fixup": ("tagging", {"residual": "fixup", "norm": "none"}),
}


def numbers(*tensors):
    """Return the root mean square of all elements and their normalised projections on two fixed vectors."""
    parts = [tensor.detach().double().flatten() for tensor in tensors if tensor is not None]
    flat = torch.cat([part[part.isfinite()] for part in parts]) if parts else torch.zeros(0)
    index = torch.arange(len(flat), dtype=torch.float64)
    size = max(len(flat), 1) ** 0.5
    return [float(flat.norm() / size), *(float(flat @ (index * rate).cos() / size) for rate in (0.7, 1.9))]


@contextmanager
def double_precision(seed=0):
    """Create tensors in float64 and seed torch's random numbers inside the context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def small(node):
    """Return the node of a network with ``SIZES`` in place of interpolations such as ``${backbone.width}``."""
    text = {f"${{backbone.{name}}}": size for name, size in SIZES.items()}
    return {**{name: text.get(str(value), value) for name, value in node.items()}, "dropout": 0.0}


def gradients(module):
    """Return the gradients of all parameters, in the order of their names."""
    return [parameter.grad for _, parameter in sorted(module.named_parameters())]


def step(module, statistics):
    """Call ``after_step`` of all modules, as after the first optimizer step."""
    with torch.no_grad():
        for each in module.modules():
            if hasattr(each, "after_step"):
                each.after_step(1, statistics.get(each.statistics_name, {}))


class Stack(nn.Module):
    """The mixers of ``LAYERS`` layers, each in a residual branch, with the prefix rows of the first one."""

    def __init__(self, node, causal):
        super().__init__()
        sizes = {"width": WIDTH, "heads": HEADS, "max_length": LENGTH + 8, "depth": LAYERS, "causal": causal}
        self.mixers = nn.ModuleList(build(node, Mixer, "mixer", layer=layer, **sizes) for layer in range(LAYERS))
        name_modules(self)

    def forward(self, x, lengths, start=0, memory=None):
        """Return the hidden states at tokens, without padding, the last context and the memory of each layer."""
        positions = start + torch.arange(x.shape[1])
        context = Context(None, positions, grid=GRID, train_length=LENGTH)
        prefix = self.mixers[0].prefix_rows(x, context)
        before = 0 if prefix is None else prefix.shape[1]
        if prefix is not None:
            x = torch.cat((prefix, x), 1)
        padding = Padding.from_lengths(torch.tensor(lengths) + before, x.shape[1])
        positions = torch.cat((positions.new_full((before,), -1), positions))
        context = context.replace(padding=padding, positions=positions, prefix=before)
        memories = []
        for layer, mixer in enumerate(self.mixers):
            own = memory[layer] if memory else None
            y, context = mixer(padding.zero(x), context.replace(depth=layer, memory=own))
            x = x + y
            memories.append(context.memory)
        return padding.zero(x)[:, before:], context, memories


def mixer_output(node, causal):
    """Return the numbers of two layers: outputs, losses and gradients in training, outputs afterwards, and memory."""
    with double_precision():
        stack = randomise(Stack(node, causal), deviation=NOISE).double().train()
        x = rows(2, LENGTH).requires_grad_()
        y, context, _ = stack(x, LENGTHS)
        (y.square().mean() + sum(context.losses.values())).backward()
        output = {"training": numbers(y, *context.losses.values()), "gradient": numbers(x.grad, *gradients(stack))}
        step(stack, context.statistics)
        with torch.no_grad():
            y, _, memory = stack.eval()(x, LENGTHS)
            output["evaluation"] = numbers(y)
            if causal and stack.mixers[0].spec.memory:
                output["memory"] = numbers(stack(rows(2, LENGTH, seed=1), LENGTHS, LENGTH, memory)[0])
    return output


def model_output(node, kind, **given):
    """Return the numbers of a network: logits, losses and gradients in training, and logits afterwards."""
    spec, lengths = KINDS[kind]
    with double_precision():
        network = randomise(build(node, nn.Module, "network", spec=spec, **given), deviation=NOISE).double().train()
        name_modules(network)
        batch = batch_for(spec, lengths)
        found = network(batch)
        losses = list(found.losses.values())
        (found.logits.square().mean() + sum(losses)).backward()
        output = {"training": numbers(found.logits, *losses), "gradient": numbers(*gradients(network))}
        step(network, found.statistics)
        with torch.no_grad():
            output["evaluation"] = numbers(network.eval()(batch).logits)
    return output


def position_output(node, causal):
    """Return the numbers of every hook and of its gradient, and of the hooks beyond the training length."""
    output = {}
    options = {"causal": causal, "grid": GRID, "train_length": LENGTH}
    with double_precision():
        known = known_options(load_class(node["_target_"], Position, "position"))
        options = {name: value for name, value in options.items() if name in known}
        position = build(node, Position, "position", width=WIDTH, heads=HEADS, max_length=LENGTH, **options)
        position = randomise(position, deviation=NOISE).double().eval()
        for length in (LENGTH, 2 * LENGTH):
            if position.supports_length(length) is None:
                found = hooks(position, length)
                output[f"{length} tokens"] = numbers(*found)
                trained = [each for each in found if each.requires_grad]
                torch.autograd.backward([each.square().mean() for each in trained])
        if any(each is not None for each in gradients(position)):
            output["gradient"] = numbers(*gradients(position))
    return output


def hooks(position, length):
    """Return the results of all hooks of a position encoding."""
    places = position.places(length, torch.device("cpu"))
    q, k, scores = (
        torch.randn(2, HEADS, length, each, generator=torch.Generator().manual_seed(each))
        for each in (WIDTH // HEADS, WIDTH // HEADS, length)
    )
    results = {
        "embed": lambda: (position.embed(rows(2, length), places),),
        "rotate": lambda: position.rotate(q, k, places, places),
        "bias": lambda: (position.bias(places, places),),
        "scores": lambda: (position.scores(q, k, places, places),),
        "weight": lambda: (position.weight(scores, places, places),),
    }
    return [tensor for hook in sorted(position.hooks) for tensor in results[hook]()]


def _cases():
    """Yield name, configuration node and function of the output of every case."""
    for name, causal in DIRECTIONS:
        suffix = " causal" if causal else ""
        yield f"mixer {name}{suffix}", NODES[name], partial(mixer_output, NODES[name], causal)
        if name in SMALL:
            node = {**NODES[name], **SMALL[name]}
            yield f"mixer {name}{suffix}, small", node, partial(mixer_output, node, causal)
    for model in option_files("model"):
        if network := node_file("model", model)["model"].get("network"):
            node = small(network)
            for kind in ("classification", "matching", "image"):
                yield f"network {model} {kind}", node, partial(model_output, node, kind)
    for name, node in POSITIONS.items():
        for causal in (False, True):
            yield f"position {name}{' causal' if causal else ''}", node, partial(position_output, node, causal)
    position, reinforced = POSITIONS["sinusoidal"], node_file("model", "sac")["backbone"]["_target_"]
    backbones = {
        name: ("lra_bench.models.backbone.SequenceModel", "transformer", *each) for name, each in BACKBONES.items()
    }
    backbones["reinforced"] = reinforced, "sac", "classification", {}
    for name, (target, mixer, kind, given) in backbones.items():
        parts = {"mixer": NODES[mixer], "position": position}
        options, given = split({**SIZES, "heads": HEADS, **given})
        node = {"_target_": target, **asdict(options), **parts, **given}
        compute = partial(model_output, {"_target_": target}, kind, options=options, **parts, **given)
        yield f"backbone {name}", node, compute


CASES = {name: (node, output) for name, node, output in _cases()}
