"""Layers of a network: one mixer per layer, in a residual block unless the mixer replaces the block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn

from lra_bench.build import build, known_options
from lra_bench.contracts import UserError
from lra_bench.options.backbone import BackboneOptions, BlockOptions

from .block import Block
from .canon_layer import CanonLayer, Preceded
from .evolved import EvolvedBlock
from .gate import GatedResidual
from .hybrid import Layers
from .mixer import Mixer
from .networks import feed_forward_network
from .residual import PLAIN


def build_mixers(layers: Layers, common: Mapping[str, Any], options: BlockOptions) -> list[Mixer]:
    """Return a new mixer for every layer.

    Args:
        layers: Configuration nodes of the mixers.
        common: Arguments that all mixers accept.
        options: Options with those of heads and biases, which mixers may lack.
    """
    return [
        build(node, Mixer, option, layer=layer, **common, **_head_options(kind, node, options))
        for layer, (node, option, kind) in enumerate(zip(layers.nodes, layers.options, layers.kinds, strict=True))
    ]


def build_block(mixer: Mixer, options: BackboneOptions) -> nn.Module:
    """Return the block around ``mixer``, or the mixer itself if it replaces the block.

    Raises ``UserError`` if it does not support the kind of block.
    """
    kind, residual = options.block, options.residual
    if kind == "evolved" and residual == "fixup":
        raise UserError("backbone.residual=fixup: is not defined for backbone.block=evolved; set residual=rezero")
    if mixer.spec.block == "self_contained":
        if kind != "residual":
            raise UserError(f"backbone.block={kind}: {type(mixer).__name__} replaces the whole block; leave it out")
        return mixer
    build_kind = partial(EvolvedBlock, causal=mixer.causal) if kind == "evolved" else Block
    return build_kind(
        mixer,
        feed_forward_network(options, mixer.layer),
        options.width,
        norm=options.norm,
        place=options.norm_place,
        dropout=options.dropout,
        chunks=options.feed_forward_chunks,
        residual=residual,
    )


def distinct_layers(layers: Layers, options: BlockOptions) -> Layers:
    """Return the layers that have their own weights: the first ``share_every``, or all of them if it is None.

    Layer i, counted from 0, has the weights of layer i mod ``share_every`` (Lan et al. 2019, arXiv 1909.11942, with 1).
    Raises ``UserError`` if layers with the same weights have different mixers, or the first layer differs from others.
    """
    share_every = options.share_every
    if share_every is None:
        return layers
    option, depth = f"backbone.share_every={share_every}", len(layers.nodes)
    if share_every >= depth:
        raise UserError(f"{option}: must be at least 1 and below the number of layers, backbone.depth={depth}")
    if any(node != layers.nodes[layer % share_every] for layer, node in enumerate(layers.nodes)):
        raise UserError(f"{option}: layers that share weights have different mixers; set a multiple of hybrid.every")
    if options.norm == "batch":
        raise UserError(f"{option}: each layer needs its own batch statistics; set backbone.norm=layer")
    for kind in layers.kinds:
        if kind.spec.carries:
            raise UserError(f"{option}: {kind.__name__} passes values from its first layer to others; leave it out")
    return Layers(layers.nodes[:share_every], layers.options[:share_every], layers.kinds[:share_every])


def add_convolutions(blocks: nn.ModuleList, width: int, size: int, causal: bool) -> None:
    """Put a Canon layer with a kernel of ``size`` tokens in front of the mixer of every block, or of the block."""
    for number, block in enumerate(blocks):
        convolution = CanonLayer(width, size, causal=causal)
        if isinstance(block, Block):
            block.convolution = convolution
        else:
            blocks[number] = Preceded(block, convolution)  # type: ignore[arg-type]


def add_gates(blocks: nn.ModuleList, kind: str, options: BlockOptions) -> None:
    """Replace the residual sums of every block by gates of ``kind``; raise ``UserError`` if that is not possible."""
    option = f"backbone.gate={kind}"
    if options.residual != PLAIN or any(isinstance(block, EvolvedBlock) for block in blocks):
        raise UserError(f"{option}: is not supported with other residual sums; leave out residual and block")
    if options.norm_place != "pre":
        raise UserError(f"{option}: gates need the norm in front of each branch; set backbone.norm_place=pre")
    if options.reversible:
        raise UserError(f"{option}: reversible blocks are residual sums; set backbone.reversible=false")
    for block in blocks:
        if not isinstance(block, Block):
            name = type(block.mixer if isinstance(block, Preceded) else block).__name__
            raise UserError(f"{option}: {name} replaces the whole block and has no residual sums")
        block.mixer_gate = GatedResidual(kind, options.width)
        if block.feed_forward is not None:
            block.feed_forward_gate = GatedResidual(kind, options.width)


def check_reversible(options: BackboneOptions, kinds: Iterable[type[Mixer]], remembers: bool) -> None:
    """Raise ``UserError`` if the blocks cannot be run as reversible blocks."""
    network = options.feed_forward
    others = options.mix_layers or options.block == "evolved" or options.experts.count is not None
    reasons = {
        "a norm after the residual sum cannot be inverted (set backbone.norm_place=pre)": options.norm_place != "pre",
        "batch statistics would be accumulated twice (set backbone.norm=layer)": options.norm == "batch",
        "the second residual branch needs feed-forward networks (set backbone.feed_forward=true)": not network,
        "is not supported with experts, mix_layers and block=evolved": others,
    }
    for kind in reversed(tuple(kinds)):
        reasons = {
            f"{kind.__name__} replaces the whole block and has no residual branches": (
                kind.spec.block == "self_contained"
            ),
            f"{kind.__name__} passes values from layer to layer": bool(kind.spec.carries),
            f"{kind.__name__} has memory": remembers,
            **reasons,
        }
    for reason, applies in reasons.items():
        if applies:
            raise UserError(f"backbone.reversible=true: {reason}")


def _head_options(kind: type[Mixer], mixer: Mapping[str, Any], options: BlockOptions) -> dict[str, Any]:
    """Return the options of the mixer that ``backbone.head_dim`` and ``backbone.attention_bias`` set.

    Options that the mixer does not have are left out instead of rejected, because recipes set them for all mixers;
    biases are left out too if the configuration of the mixer sets them.
    """
    accepted = known_options(kind)
    biases = {name: options.attention_bias for name in ("qkv_bias", "output_bias") if name not in mixer}
    given = {"head_dim": options.head_dim, **biases}
    return {
        name: value for name, value in given.items() if value is not None and (accepted is None or name in accepted)
    }
