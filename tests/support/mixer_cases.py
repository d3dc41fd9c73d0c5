"""Build small versions of all mixers and positions in the configuration files."""

from importlib.resources import files

import torch
import yaml
from torch.utils._pytree import tree_leaves

from lra_bench.build import build, load_class
from lra_bench.models.mixer import Context, Mixer, Padding, name_modules
from lra_bench.models.positions.position import Position
from tests.oracles import ORACLES, OUTPUTS, SMALL

WIDTH, HEADS = 16, 2


def model_files():
    """Return the configuration nodes of all built-in mixers by name.

    Systems with retrieval or a depth controller are left out: their mixer is that of another system.
    """
    found = {}
    for file in files("lra_bench.conf.model").iterdir():
        if file.name.endswith(".yaml") and not file.name.startswith("_"):
            model = yaml.safe_load(file.read_text(encoding="utf-8"))["model"]
            if (node := model.get("mixer")) and not {"retrieval", "controller"} & set(model):
                found[file.name.removesuffix(".yaml")] = node
    return dict(sorted(found.items()))


NODES = model_files()
SPECS = {name: load_class(node["_target_"], Mixer, name).spec for name, node in NODES.items()}


def directions(name):
    """Return the values of ``causal`` for which a mixer declares exact support."""
    return ([False] if SPECS[name].bidirectional else []) + ([True] if SPECS[name].causal == "exact" else [])


def first_direction(name):
    """Return the value of ``causal`` for tests that need one direction only."""
    return not SPECS[name].bidirectional


CASES = [(name, causal) for name in NODES for causal in directions(name)]


def make(
    name,
    *,
    causal=False,
    dropout=0.0,
    seed=0,
    weights=1,
    dtype=torch.float64,
    max_length=128,
    layer=0,
    depth=1,
    **changes,
):
    """Build a small mixer with random weights and biases.

    ``weights`` is the seed of the weights; with None the initial weights are kept.
    """
    node = {**NODES[name], **SMALL.get(name, {}), **changes}
    torch.default_generator.manual_seed(weights or 0)  # faster than torch.manual_seed, which formats the stack
    common = {"width": WIDTH, "heads": HEADS, "max_length": max_length, "dropout": dropout}
    mixer = build(node, Mixer, "mixer", causal=causal, seed=seed, layer=layer, depth=depth, **common)
    for parameter in mixer.parameters() if weights is not None else ():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    name_modules(mixer)
    return mixer.to(dtype).train(dropout > 0)


def position_files():
    """Return the configuration nodes of all built-in positions by name."""
    found = [file for file in files("lra_bench.conf.position").iterdir() if file.name.endswith(".yaml")]
    nodes = {file.name.removesuffix(".yaml"): yaml.safe_load(file.read_text(encoding="utf-8")) for file in found}
    return {name: node for name, node in sorted(nodes.items()) if node}


POSITIONS = position_files()


def make_position(name, *, causal=False, width=WIDTH, heads=HEADS, max_length=128, **options):
    """Build a position with the options of its file, in the size of the small mixers."""
    common = {"width": width, "heads": heads, "max_length": max_length, "causal": causal}
    return build({**POSITIONS[name], **options}, Position, "position", **common)


def context(rows, lengths=None):
    """Return the context of sequences without prefix; ``lengths`` None means without padding."""
    padding = None if lengths is None else Padding.from_lengths(torch.as_tensor(lengths), rows)
    return Context(padding, torch.arange(rows), train_length=rows)


def rows(batch, n, seed=0, dtype=torch.float64):
    """Return normally distributed inputs (B, N, E)."""
    return torch.randn(batch, n, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def run(mixer, x, lengths=None):
    """Return the mixer's output for inputs x (B, N, E)."""
    return mixer(x, context(x.shape[1], lengths))[0]


def stack(name, depth=3, *, weights=1, **options):
    """Build the mixers of ``depth`` layers, each with different weights."""
    return torch.nn.ModuleList(
        make(name, layer=layer, depth=depth, weights=weights + layer, **options) for layer in range(depth)
    )


def run_stack(mixers, x, lengths=None):
    """Apply mixers sequentially, each in a residual branch, with the values that they pass from layer to layer."""
    state = context(x.shape[1], lengths)
    for depth, mixer in enumerate(mixers):
        y, state = mixer(x, state.replace(depth=depth, memory=None))
        x = x + y
    return x


def with_prefix(mixer, x, lengths):
    """Return inputs x and their lengths with the prefix rows of the mixer, if it has any, prepended."""
    before = mixer.prefix_rows(x, context(x.shape[1]))
    return (x, lengths) if before is None else (torch.cat((before, x), 1), [n + before.shape[1] for n in lengths])


def total(mixer, x, lengths=None):
    """Return a scalar that depends on all parameters: the sum of squares of the output and the carried tensors."""
    y, after = mixer(x, context(x.shape[1], lengths))
    carried = (leaf for leaf in tree_leaves(after.carry) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
    return y.square().sum() + sum(leaf.square().sum() for leaf in carried)


def dense_output(mixer, x, lengths=None):
    """Return the output of the mixer's dense oracle, and its attention weights or None."""
    visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    visible = visible.tril() if mixer.causal else visible
    if lengths is not None:
        visible = visible & Padding.from_lengths(torch.as_tensor(lengths), x.shape[1]).key_mask()
    if type(mixer) in OUTPUTS:
        return OUTPUTS[type(mixer)](mixer, x, visible), None
    weights = ORACLES[type(mixer)](mixer, x, visible)
    _, _, v = mixer.project(x)
    return mixer.merge(weights @ v.repeat_interleave(mixer.heads // mixer.kv_heads, 1)), weights
