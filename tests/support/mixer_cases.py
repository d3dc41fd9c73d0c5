"""Every mixer that a model file names, with what a test needs to build it small."""

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
    """Name and node of every built-in mixer."""
    found = {}
    for file in files("lra_bench.conf.model").iterdir():
        if file.name.endswith(".yaml") and not file.name.startswith("_"):
            node = yaml.safe_load(file.read_text(encoding="utf-8"))["model"].get("mixer")
            if node:
                found[file.name.removesuffix(".yaml")] = node
    return dict(sorted(found.items()))


NODES = model_files()
SPECS = {name: load_class(node["_target_"], Mixer, name).spec for name, node in NODES.items()}


def directions(name):
    """The directions in which a mixer claims to be exact."""
    return ([False] if SPECS[name].bidirectional else []) + ([True] if SPECS[name].causal == "exact" else [])


def first_direction(name):
    """Whether a mixer is tested causally where one direction is enough."""
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
    **own,
):
    """A small mixer with random weights and biases, the same for the same ``weights``; None: as it begins."""
    node = {**NODES[name], **SMALL.get(name, {}), **own}
    torch.default_generator.manual_seed(weights or 0)  # torch.manual_seed formats the stack for each kind of device
    common = {"width": WIDTH, "heads": HEADS, "max_length": max_length, "dropout": dropout}
    mixer = build(node, Mixer, "mixer", causal=causal, seed=seed, layer=layer, depth=depth, **common)
    for parameter in mixer.parameters() if weights is not None else ():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    name_modules(mixer)
    return mixer.to(dtype).train(dropout > 0)


def position_files():
    """Name and node of every built-in position."""
    found = [file for file in files("lra_bench.conf.position").iterdir() if file.name.endswith(".yaml")]
    nodes = {file.name.removesuffix(".yaml"): yaml.safe_load(file.read_text(encoding="utf-8")) for file in found}
    return {name: node for name, node in sorted(nodes.items()) if node}


POSITIONS = position_files()


def make_position(name, *, causal=False, width=WIDTH, heads=HEADS, max_length=128, **options):
    """A position as its file has it, of the size of the small mixers."""
    common = {"width": width, "heads": heads, "max_length": max_length, "causal": causal}
    return build({**POSITIONS[name], **options}, Position, "position", **common)


def context(rows, lengths=None):
    """The context of rows without prefix; ``lengths`` None where nothing is padded."""
    padding = None if lengths is None else Padding.from_lengths(torch.as_tensor(lengths), rows)
    return Context(padding, torch.arange(rows), train_length=rows)


def rows(batch, n, seed=0, dtype=torch.float64):
    """Random rows (B, N, E) of unit scale."""
    return torch.randn(batch, n, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def run(mixer, x, lengths=None):
    """The mixer's output for rows x."""
    return mixer(x, context(x.shape[1], lengths))[0]


def stack(name, depth=3, *, weights=1, **options):
    """The mixers of some layers, each with weights of its own."""
    return torch.nn.ModuleList(
        make(name, layer=layer, depth=depth, weights=weights + layer, **options) for layer in range(depth)
    )


def run_stack(mixers, x, lengths=None):
    """The rows above mixers that follow each other, each in a residual branch, with what they hand on."""
    where = context(x.shape[1], lengths)
    for depth, mixer in enumerate(mixers):
        y, where = mixer(x, where.replace(depth=depth, memory=None))
        x = x + y
    return x


def with_prefix(mixer, x, lengths):
    """Rows x and their lengths, with the rows before them that the stack places once where a mixer has its own."""
    before = mixer.prefix_rows(x, context(x.shape[1]))
    return (x, lengths) if before is None else (torch.cat((before, x), 1), [n + before.shape[1] for n in lengths])


def total(mixer, x, lengths=None):
    """A number that all its parameters have a part in: squares of its outputs and of what it hands on."""
    y, after = mixer(x, context(x.shape[1], lengths))
    handed = (leaf for leaf in tree_leaves(after.carry) if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
    return y.square().sum() + sum(leaf.square().sum() for leaf in handed)


def dense_output(mixer, x, lengths=None):
    """The mixer's output by its definition; and its weights, None where it has none."""
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    seen = seen.tril() if mixer.causal else seen
    if lengths is not None:
        seen = seen & Padding.from_lengths(torch.as_tensor(lengths), x.shape[1]).key_mask()
    if type(mixer) in OUTPUTS:
        return OUTPUTS[type(mixer)](mixer, x, seen), None
    weights = ORACLES[type(mixer)](mixer, x, seen)
    _, _, v = mixer.project(x)
    return mixer.merge(weights @ v.repeat_interleave(mixer.heads // mixer.kv_heads, 1)), weights
