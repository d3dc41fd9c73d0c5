"""Small task specs, batches and models."""

from dataclasses import fields
from importlib.resources import files

import torch
import yaml

from lra_bench.build import load_class
from lra_bench.config.serialization import options_from
from lra_bench.contracts import Batch, TaskSpec
from lra_bench.models.backbone import SequenceModel
from lra_bench.options.backbone import BackboneOptions
from tests.support.mixer_cases import NODES

NAMES = {entry.name for entry in fields(BackboneOptions)}


def node_file(group, name):
    """Return the content of a configuration file."""
    return yaml.safe_load(files(f"lra_bench.conf.{group}").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))


def task(kind="classification", direction="either", classes=3, length=24, **own):
    own = own if "channels" in own else {"vocabulary_size": 11, **own}
    return TaskSpec("toy", "1", kind, direction, classes, length, **own)


def batch_for(spec, lengths=(24, 17, 1), width=None, seed=0):
    """Return a batch of random examples of ``spec`` with these lengths; padding contains random values too."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    width = width or int(lengths.max())
    shape = (*lengths.shape, width)
    tokens = values = None
    if spec.channels:
        values = torch.randn(*shape, spec.channels, generator=generator, dtype=torch.float64)
    else:
        tokens = torch.randint(spec.vocabulary_size, shape, generator=generator)
    targets = torch.randint(spec.classes, shape if spec.per_token else lengths.shape[:1], generator=generator)
    return Batch(lengths=lengths, targets=targets, tokens=tokens, values=values)


def initial_model(spec, mixer="transformer", position="sinusoidal", weights=0, own=None, **options):
    """Build a small model with its initial weights; ``mixer`` is a model's name or a class of ``contract_systems``."""
    node = NODES.get(mixer) or {"_target_": f"tests.support.contract_systems.{mixer}"}
    stack = node_file("model", mixer).get("backbone", {}).get("_target_") if mixer in NODES else None
    kind = load_class(stack, SequenceModel, "backbone") if stack else SequenceModel
    position_node = node_file("position", position) if isinstance(position, str) else position
    options, given = split({"depth": 2, "width": 16, "heads": 2, "ff_width": 24, "dropout": 0.0, **options})
    torch.manual_seed(weights)
    return kind(spec=spec, mixer={**node, **(own or {})}, position=position_node, options=options, **given)


def split(values):
    """Return the options of a backbone among ``values``, checked, and the other arguments of its constructor."""
    options = options_from(BackboneOptions, {k: v for k, v in values.items() if k in NAMES}, "backbone")
    return options, {name: value for name, value in values.items() if name not in NAMES}


def model(*setting, **options):
    """Build a small model as ``initial_model`` does, in double precision and evaluation mode."""
    return initial_model(*setting, **options).double().eval()


def randomise(network, seed=0, deviation=0.3):
    """Add noise to all parameters, so that tests do not depend on zeros and ones of the initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(deviation * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return network
