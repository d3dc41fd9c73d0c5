"""Training with several processes gives the same result as with one, and failures of ranks are reported correctly."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lra_bench.cells.stages import largest
from lra_bench.config.groups import option_files
from lra_bench.config.schema import CellConfig, Train
from lra_bench.config.validation import check_hardware, check_machine
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import (
    Hardware,
    HardwareOptions,
    processes_of,
    resolve,
    shards_on_cpu,
    slug,
)
from lra_bench.training import loop
from lra_bench.training.optimizer import Optimizer
from lra_bench.training.parallel import Group, micro_batches, separable, shard, share
from lra_bench.training.ranks import Ranks
from tests.support.parallel_ranks import Case, in_ranks, trained
from tests.training.test_loop import RECIPE, rows, toy

TOLERANCE = 1e-10
STOCHASTIC = {"sac", "sinkhorn", "sinkhorn_bilinear", "sortcut"}
"""Systems that sample during training: noise on scores, or actions."""
OVERRIDES = {
    "routing": ["position=sinusoidal"],
    "long_conv": ["model.mixer.kernel_dropout=0"],
    "bag_of_tokens": ["model.network.dropout=0"],
}
"""Overrides that make training deterministic.

Dropout is disabled. With rotary positions, which act inside the mixer only, equal tokens have equal distances to a
centroid of ``routing``, and rounding errors determine which of them is selected; hence sinusoidal positions.
"""
EXPERTS = [
    *("backbone.depth=2", "backbone.product_keys.layer=1"),
    *("backbone.experts.count=4", "backbone.experts.every=2", "backbone.experts.z_loss=0.001"),
]
OPTIONS = HardwareOptions(device="cpu", precision="fp32", threads=1)


def parallel_options(strategy: str, processes: int | None = None, **changes) -> HardwareOptions:
    return replace(OPTIONS, strategy=strategy, processes=processes, **changes)


def system(name: str) -> list[str]:
    return [f"model={name}", *OVERRIDES.get(name, [])]


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_shares_are_consecutive_and_nearly_equal(parts):
    for count in range(34):
        shares = [share(count, part, parts) for part in range(parts)]
        assert [row for start, stop in shares for row in range(start, stop)] == list(range(count))
        sizes = [stop - start for start, stop in shares]
        assert max(sizes) - min(sizes) <= 1


@given(size=st.integers(4, 40), cap=st.none() | st.integers(1, 9), world=st.integers(1, 4))
def test_micro_batches_of_ranks_cover_every_row_once_and_are_equally_many(size, cap, world):
    parts = [micro_batches(size, cap, rank, world) for rank in range(world)]
    assert [row for of_rank in parts for start, stop in of_rank for row in range(start, stop)] == list(range(size))
    lengths = [stop - start for of_rank in parts for start, stop in of_rank]
    assert min(lengths) >= 1 and max(lengths) <= (cap or size)
    if cap != 1 or size % world == 0:
        assert len({len(of_rank) for of_rank in parts}) == 1


@pytest.mark.parametrize(("count", "world"), [(1, 4), (5, 2), (7, 4), (8, 4)])
def test_ranks_evaluate_every_batch_and_equally_many_each(count, world):
    turns = [Group(rank, world).turns(count) for rank in range(world)]
    assert set(itertools.chain(*turns)) == set(range(count))
    assert len({len(of_rank) for of_rank in turns}) == 1


@pytest.mark.parametrize(("world", "cap"), [(2, None), (3, None), (4, 1), (2, 2)])
def test_shares_of_a_batch_add_up_to_its_loss_and_gradients(world, cap):
    """The auxiliary loss is a mean over rows; seven rows give uneven shares with separate micro-batches."""
    batch = rows().batch(np.arange(7))
    machine = Hardware(torch.device("cpu"), "fp32", 1, False, cap, "cpu")
    found = []
    for groups in ([Group()], [Group(rank, world) for rank in range(world)]):
        model = toy(dropout=0.0).double()
        optimizer = Optimizer(model, RECIPE, machine)
        steps = [loop.forward_backward(model, batch, optimizer, machine, None, group) for group in groups]
        # DDP averages gradients over ranks.
        gradients = [parameter.grad / len(groups) for parameter in model.parameters()]
        found.append([sum(loss for loss, _, _ in steps), *gradients, sum(sums[""]["tokens"] for *_, sums in steps)])
    for expected, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, expected, rtol=0, atol=1e-12)


def test_rows_of_a_memory_are_split_over_ranks():
    memory = {"seen": torch.arange(7), "layers": (torch.randn(7, 2),)}
    parts = [Group(rank, 3).own(memory) for rank in range(3)]
    assert [len(part["seen"]) for part in parts] == [3, 2, 2]
    torch.testing.assert_close(torch.cat([part["layers"][0] for part in parts]), memory["layers"][0])


def test_modules_that_share_weights_are_not_sharded_separately():
    blocks = [nn.Linear(2, 2) for _ in range(3)]
    blocks[1].weight = blocks[0].weight
    assert separable(nn.ModuleList(blocks), blocks) == [blocks[2]]


def test_scalar_parameter_cannot_be_sharded():
    model = nn.Module()
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    with pytest.raises(UserError, match=r"hardware\.strategy=fsdp.*scale.*ddp"):
        shard(model)


def test_peak_of_a_group_is_the_maximum_over_ranks_and_none_if_unknown():
    peaks = [{"a": 3, "b": None}, {"a": 5, "b": 7}]
    assert largest(peaks) == {"a": 5, "b": None}


@pytest.mark.parametrize(
    ("ends", "failures", "kind", "words"),
    [
        ([(0, "failed", "RuntimeError: connection closed")], {0: 1, 1: -9}, "GroupFailed", "rank 1 ended by signal 9"),
        ([(1, "out_of_memory", "too much"), (0, "failed", "closed")], {0: 1, 1: 1}, "MemoryError", "rank 1: too much"),
        ([(1, "diverged", "the loss"), (0, "diverged", "the loss")], {}, "Diverged", "the loss"),
        ([(0, "mistake", "free space"), (1, "failed", "closed")], {0: 1}, "UserError", "free space"),
        ([(0, "interrupted", ""), (1, "interrupted", "")], {}, "KeyboardInterrupt", ""),
        ([], {}, "GroupFailed", "without a report"),
        ([(0, "ok", "")], {}, "GroupFailed", "without a report"),
    ],
)
def test_error_of_a_group_names_the_first_cause(ends, failures, kind, words):
    result = Ranks(
        [None, None], 0, {rank: {"status": status, "reason": reason} for rank, status, reason in ends}, failures
    )
    assert not result.finished()
    error = result.error()
    assert type(error).__name__ == kind
    assert words in str(error)


def test_rank_that_crashes_after_reporting_success_counts_as_finished():
    assert Ranks([None, None], 0, {rank: {"status": "ok"} for rank in range(2)}, {1: -6}).finished()


def test_hardware_slug_contains_number_of_processes_and_strategy():
    plain = slug(OPTIONS)
    assert slug(parallel_options("ddp")) == plain.replace("-1t", "-2x1t-ddp")
    assert slug(parallel_options("fsdp", 3, precision="bf16")) == plain.replace("-1t", "-3x1t-bf16-fsdp")
    machine = resolve(parallel_options("ddp", 4))
    assert (machine.processes, machine.strategy, machine.threads) == (4, "ddp", 1)
    assert processes_of(OPTIONS) == processes_of(parallel_options("ddp", 1)) == 1


@pytest.mark.parametrize(
    ("options", "batch_size", "words"),
    [
        (parallel_options("none", 2), 8, "hardware.processes=2: needs hardware.strategy"),
        (parallel_options("ddp", 4), 3, "train.batch_size=3.*hardware.processes=4"),
        (parallel_options("fsdp", 2, micro_batch=1), 3, "hardware.micro_batch=1.*train.batch_size=3"),
    ],
)
def test_invalid_options_of_several_processes_raise_user_error(options, batch_size, words):
    with pytest.raises(UserError, match=words):
        check_machine(CellConfig(hardware=options, train=Train(batch_size=batch_size)))


def test_more_processes_than_gpus_raise_user_error(monkeypatch):
    monkeypatch.setattr("lra_bench.runtime.hardware.has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert processes_of(parallel_options("ddp", device="cuda")) == 2
    with pytest.raises(UserError, match=r"hardware\.processes=3.*2 are available"):
        check_hardware(parallel_options("ddp", 3, device="cuda"))


def test_fsdp_on_a_cpu_needs_a_version_of_torch_that_supports_it(monkeypatch):
    monkeypatch.setattr(torch.cpu, "Stream", object)
    with pytest.raises(UserError, match=r"cannot shard on a CPU; set hardware\.strategy=ddp"):
        check_hardware(parallel_options("fsdp", 2))


def difference(found: dict, expected: dict) -> float:
    """Return the largest absolute difference between losses, gradient norms and validations of two runs."""
    assert found["tokens"] == expected["tokens"] and found["best_step"] == expected["best_step"]
    assert len(found["pretraining"]) == len(expected["pretraining"])
    pairs = [
        *zip(np.ravel(found["pretraining"]), np.ravel(expected["pretraining"]), strict=True),
        *zip(found["loss"] + found["norm"], expected["loss"] + expected["norm"], strict=True),
        *zip(np.ravel(found["validation"]), np.ravel(expected["validation"]), strict=True),
    ]
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.slow
def test_training_with_two_processes_equals_training_with_one(tmp_path):
    """Covers routing, experts, adaptive depth, uneven micro-batches, sharded weights, optimizers and strategies."""
    few = ["train.steps=6", "train.evaluate_every=3", "train.batch_size=7"]
    routing, parts = [*few, *system("routing")], [*few, *system("transformer"), "hardware.micro_batch=2"]
    experts = [*few, *system("transformer"), *EXPERTS]
    runs = {
        "routing": routing,
        "universal": [*few, *system("universal"), "model.controller.steps=3", "model.controller.ponder_weight=0.1"],
        "depth_adaptive": [*few, *system("depth_adaptive"), "backbone.depth=2"],
        "parts": parts,
        "experts": experts,
        "pretrained": [*parts, "pretrain=masked", "pretrain.steps=4"],
        **{name: [*parts, f"train.optimizer={name}"] for name in ("adam", "sgd")},
    }
    alone = {name: trained(Case(run, str(tmp_path / name))) for name, run in runs.items()}
    interrupted = Case(experts, str(tmp_path / "0"), stop_after=3)
    trained(interrupted)
    assert trained(replace(interrupted, stop_after=None)) == alone["experts"]
    cases = {
        ("routing", "ddp"): Case(routing, str(tmp_path / "1")),
        ("routing", "fsdp"): Case(routing, str(tmp_path / "2"), shards_on_cpu()),
        ("universal", "ddp"): Case(runs["universal"], str(tmp_path / "8")),
        ("universal", "fsdp"): Case(runs["universal"], str(tmp_path / "9"), shards_on_cpu()),
        ("depth_adaptive", "fsdp"): Case(runs["depth_adaptive"], str(tmp_path / "10"), shards_on_cpu()),
        ("parts", "interrupted"): Case(parts, str(tmp_path / "5"), shards_on_cpu(), stop_after=3),
        ("parts", "resumed"): Case(parts, str(tmp_path / "5")),
        ("experts", "ddp"): Case([*experts, "hardware.micro_batch=2"], str(tmp_path / "3")),
        ("experts", "interrupted"): Case(experts, str(tmp_path / "4"), stop_after=3),
        ("experts", "resumed"): Case(experts, str(tmp_path / "4")),
        ("pretrained", "ddp"): Case(runs["pretrained"], str(tmp_path / "11")),
        ("pretrained", "fsdp"): Case(runs["pretrained"], str(tmp_path / "12"), shards_on_cpu()),
        ("adam", "fsdp"): Case(runs["adam"], str(tmp_path / "6"), shards_on_cpu()),
        ("sgd", "interrupted"): Case(runs["sgd"], str(tmp_path / "7"), shards_on_cpu(), stop_after=3),
        ("sgd", "resumed"): Case(runs["sgd"], str(tmp_path / "7"), shards_on_cpu()),
    }
    for (name, how), found in zip(cases, in_ranks(list(cases.values()), 2, tmp_path), strict=True):
        if how != "interrupted":
            assert difference(found, alone[name]) <= TOLERANCE, (name, how)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
def test_smoke_run_gives_the_same_losses_for_any_number_of_processes(tmp_path, processes):
    names = ("transformer", "performer", "local", "routing")
    cases = [
        Case(system(name), str(tmp_path / f"{name}-{sharded}"), sharded)
        for name, sharded in itertools.product(names, [False, True])
    ]
    alone = {name: trained(Case(system(name), str(tmp_path / name))) for name in names}
    for case, found in zip(cases, in_ranks(cases, processes, tmp_path), strict=True):
        expected = alone[case.overrides[0].removeprefix("model=")]
        assert len(found["loss"]) == 20
        assert difference(found, expected) <= TOLERANCE, case


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
def test_every_system_trains_with_two_processes_as_with_one(tmp_path, part):
    """Compare DDP with FSDP2, and both with one process. Each part contains every third system.

    Systems that sample during training are not compared with one process, because random numbers differ between ranks.
    """
    few = ["train.steps=4", "train.evaluate_every=4"]
    runs = {name: system(name) for name in option_files("model")}
    runs |= {f"position {name}": ["model=transformer", f"position={name}"] for name in ("t5", "learned", "shaw")}
    runs |= {"uneven": ["model=luna", "backbone.depth=3", "train.batch_size=5"]}
    runs |= {
        "experts": ["model=transformer", *EXPERTS],
        "rezero": ["model=transformer", "backbone.residual=rezero", "backbone.block=evolved"],
        "canon": ["model=transformer", "backbone.short_convolution=3"],
        "shared": ["model=transformer", "backbone.share_every=1", "backbone.depth=2", "backbone.mix_layers=true"],
    }
    runs |= {"reversible": ["model=reformer", "backbone.reversible=true", "backbone.depth=2"]}
    runs = dict(list(runs.items())[part::3])
    cases = [
        Case([*run, *few], str(tmp_path / f"{name}-{sharded}"), sharded and name != "spalm")  # spalm refuses FSDP
        for name, run in runs.items()
        for sharded in (False, True)
    ]
    found = in_ranks(cases, 2, tmp_path)
    differences = {}
    for number, (name, run) in enumerate(runs.items()):
        averaged, sharded = found[2 * number : 2 * number + 2]
        differences[name, "sharded"] = difference(averaged, sharded)
        if name not in STOCHASTIC:
            alone = trained(Case([*run, *few], str(tmp_path / name)))
            differences[name, "alone"] = difference(averaged, alone)
    assert not {case: value for case, value in differences.items() if value > TOLERANCE}


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [pytest.param(False, marks=pytest.mark.long), True])
def test_run_of_four_processes_resumes_exactly_and_in_one_process_within_tolerance(tmp_path, sharded):
    model = [*system("routing"), "train.evaluate_every=10"]
    folders = [str(tmp_path / name) for name in ("whole", "same", "other")]
    cases = [
        Case(model, folders[0], sharded),
        Case(model, folders[1], sharded, stop_after=10),
        Case(model, folders[2], sharded, stop_after=10),
        Case(model, folders[1], sharded),
    ]
    whole, _, _, same = in_ranks(cases, 4, tmp_path)
    assert same == whole
    assert difference(trained(Case(model, folders[2])), whole) <= TOLERANCE
