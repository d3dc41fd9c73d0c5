"""Several processes that train together do what one process does, and their end is understood."""

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
from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import Hardware, HardwareOptions, check_batch, processes_of, resolve, slug
from lra_bench.training import loop
from lra_bench.training.optimizer import Optimizer
from lra_bench.training.parallel import Group, micro_batches, separable, shard, share
from lra_bench.training.torchrun import GroupResult
from tests.support.parallel_ranks import Case, in_ranks, trained
from tests.training.test_loop import RECIPE, rows, toy

TOLERANCE = 1e-10
DRAWING = {"sac", "sinkhorn", "sinkhorn_bilinear", "sortcut"}
"""Systems that sample in training, by noise on their scores or actions."""
OWN = {
    "routing": ["position=sinusoidal"],
    "long_conv": ["model.mixer.kernel_dropout=0"],
    "bag_of_tokens": ["model.network.dropout=0"],
}
"""Without draws; and rotated inside the mixer alone, equal tokens are equally near to a centroid of ``routing``:
rounding says which of them it takes."""
OPTIONS = HardwareOptions(device="cpu", precision="fp32", threads=1)


def together(strategy: str, processes: int | None = None, **changes) -> HardwareOptions:
    return replace(OPTIONS, strategy=strategy, processes=processes, **changes)


def system(name: str) -> list[str]:
    return [f"model={name}", *OWN.get(name, [])]


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_shares_follow_each_other_and_are_nearly_equal(parts):
    for count in range(34):
        shares = [share(count, part, parts) for part in range(parts)]
        assert [row for start, stop in shares for row in range(start, stop)] == list(range(count))
        sizes = [stop - start for start, stop in shares]
        assert max(sizes) - min(sizes) <= 1


@given(size=st.integers(4, 40), cap=st.none() | st.integers(1, 9), world=st.integers(1, 4))
def test_ranks_read_every_row_once_in_equally_many_parts(size, cap, world):
    parts = [micro_batches(size, cap, rank, world) for rank in range(world)]
    assert [row for own in parts for start, stop in own for row in range(start, stop)] == list(range(size))
    lengths = [stop - start for own in parts for start, stop in own]
    assert min(lengths) >= 1 and max(lengths) <= (cap or size)
    if cap != 1 or size % world == 0:
        assert len({len(own) for own in parts}) == 1


@pytest.mark.parametrize(("count", "world"), [(1, 4), (5, 2), (7, 4), (8, 4)])
def test_ranks_evaluate_every_batch_in_equally_many_turns(count, world):
    turns = [Group(rank, world).turns(count) for rank in range(world)]
    assert set(itertools.chain(*turns)) == set(range(count))
    assert len({len(own) for own in turns}) == 1


@pytest.mark.parametrize(("world", "cap"), [(2, None), (3, None), (4, 1), (2, 2)])
def test_shares_of_a_batch_add_up_to_its_loss_and_gradients(world, cap):
    """The auxiliary loss is a mean over rows and seven rows make uneven shares, each in micro-batches of its own."""
    batch = rows().batch(np.arange(7))
    machine = Hardware(torch.device("cpu"), "fp32", 1, False, cap, "cpu")
    found = []
    for groups in ([Group()], [Group(rank, world) for rank in range(world)]):
        model = toy(dropout=0.0).double()
        optimizer = Optimizer(model, RECIPE, machine)
        steps = [loop.forward_backward(model, batch, optimizer, machine, None, group) for group in groups]
        # DDP takes the mean of what ranks found.
        gradients = [parameter.grad / len(groups) for parameter in model.parameters()]
        found.append([sum(loss for loss, _, _ in steps), *gradients, sum(told[""]["tokens"] for *_, told in steps)])
    for whole, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, whole, rtol=0, atol=1e-12)


def test_rows_of_a_memory_are_dealt_to_ranks():
    memory = {"seen": torch.arange(7), "layers": (torch.randn(7, 2),)}
    parts = [Group(rank, 3).own(memory) for rank in range(3)]
    assert [len(part["seen"]) for part in parts] == [3, 2, 2]
    torch.testing.assert_close(torch.cat([part["layers"][0] for part in parts]), memory["layers"][0])


def test_parts_that_share_weights_are_not_sharded_by_themselves():
    blocks = [nn.Linear(2, 2) for _ in range(3)]
    blocks[1].weight = blocks[0].weight
    assert separable(nn.ModuleList(blocks), blocks) == [blocks[2]]


def test_a_single_number_cannot_be_sharded():
    model = nn.Module()
    model.register_parameter("scale", nn.Parameter(torch.ones(())))
    with pytest.raises(UserError, match=r"hardware\.strategy=fsdp.*scale.*ddp"):
        shard(model)


def test_the_largest_rank_counts_and_unknown_stays_unknown():
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
        ([], {}, "GroupFailed", "without a word"),
        ([(0, "ok", "")], {}, "GroupFailed", "without a word"),
    ],
)
def test_what_ended_a_group_is_found(ends, failures, kind, words):
    result = GroupResult({rank: {"status": status, "reason": reason} for rank, status, reason in ends}, failures)
    assert not result.finished(2)
    error = result.error()
    assert type(error).__name__ == kind
    assert words in str(error)


def test_a_killed_torchrun_is_an_end_from_outside_whatever_ranks_told():
    result = GroupResult({0: {"status": "interrupted", "reason": ""}}, agent_code=-9)
    error = result.error()
    assert type(error).__name__ == "GroupFailed" and error.status == "interrupted"
    assert str(error).startswith("torchrun ended by signal 9, from outside")


def test_a_crash_on_the_way_out_loses_nothing():
    assert GroupResult({rank: {"status": "ok"} for rank in range(2)}, {1: -6}).finished(2)


def test_hardware_of_several_processes_has_a_name_of_its_own():
    plain = slug(OPTIONS)
    assert slug(together("ddp")) == plain.replace("-1t", "-2x1t-ddp")
    assert slug(together("fsdp", 3, precision="bf16")) == plain.replace("-1t", "-3x1t-bf16-fsdp")
    machine = resolve(together("ddp", 4))
    assert (machine.processes, machine.strategy, machine.threads) == (4, "ddp", 1)
    assert processes_of(OPTIONS) == processes_of(together("ddp", 1)) == 1


@pytest.mark.parametrize(
    ("options", "batch_size", "words"),
    [
        (together("zero"), 8, "hardware.strategy=zero: choose none, ddp or fsdp"),
        (together("none", 2), 8, "hardware.processes=2: needs hardware.strategy"),
        (together("ddp", 4), 3, "train.batch_size=3.*hardware.processes=4"),
        (together("fsdp", 2, micro_batch=1), 3, "hardware.micro_batch=1.*train.batch_size=3"),
    ],
)
def test_what_several_processes_cannot_do_is_said(options, batch_size, words):
    with pytest.raises(UserError, match=words):
        check_batch(options, batch_size)


def test_more_processes_than_cards(monkeypatch):
    monkeypatch.setattr("lra_bench.runtime.hardware._has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert processes_of(together("ddp", device="cuda")) == 2
    with pytest.raises(UserError, match=r"hardware\.processes=3.*there are 2"):
        processes_of(together("ddp", 3, device="cuda"))


def difference(found: dict, expected: dict) -> float:
    """The largest difference between losses, gradient norms and validations of two runs."""
    assert found["tokens"] == expected["tokens"] and found["best_step"] == expected["best_step"]
    pairs = [
        *zip(found["loss"] + found["norm"], expected["loss"] + expected["norm"], strict=True),
        *zip(np.ravel(found["validation"]), np.ravel(expected["validation"]), strict=True),
    ]
    return max(abs(a - b) for a, b in pairs)


def test_two_processes_train_as_one(tmp_path):
    """Covers routing statistics, uneven micro-batches, sharded weights, each optimizer and a changed strategy."""
    few = ["train.steps=6", "train.evaluate_every=3", "train.batch_size=7"]
    routing, parts = [*few, *system("routing")], [*few, *system("transformer"), "hardware.micro_batch=2"]
    runs = {
        "routing": routing,
        "parts": parts,
        **{name: [*parts, f"train.optimizer={name}"] for name in ("adam", "sgd")},
    }
    alone = {name: trained(Case(run, str(tmp_path / name))) for name, run in runs.items()}
    cases = {
        ("routing", "ddp"): Case(routing, str(tmp_path / "1")),
        ("routing", "fsdp"): Case(routing, str(tmp_path / "2"), sharded=True),
        ("parts", "broken off"): Case(parts, str(tmp_path / "5"), sharded=True, stop_after=3),
        ("parts", "and resumed"): Case(parts, str(tmp_path / "5")),
        ("adam", "fsdp"): Case(runs["adam"], str(tmp_path / "6"), sharded=True),
        ("sgd", "broken off"): Case(runs["sgd"], str(tmp_path / "7"), sharded=True, stop_after=3),
        ("sgd", "and resumed"): Case(runs["sgd"], str(tmp_path / "7"), sharded=True),
    }
    for (name, how), found in zip(cases, in_ranks(list(cases.values()), 2, tmp_path), strict=True):
        if how != "broken off":
            assert difference(found, alone[name]) <= TOLERANCE, (name, how)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_whole_smoke_run_is_the_same_for_any_number_of_processes(tmp_path, processes):
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
def test_every_system_trains_in_two_processes_as_in_one(tmp_path):
    """Deviations, where there are, come from draws in training, which differ from rank to rank."""
    few = ["train.steps=4", "train.evaluate_every=4"]
    runs = {name: system(name) for name in option_files("model")}
    runs |= {f"position {name}": ["model=transformer", f"position={name}"] for name in ("t5", "learned", "shaw")}
    runs |= {"uneven": ["model=luna", "backbone.depth=3", "train.batch_size=5"]}
    runs |= {"reversible": ["model=reformer", "backbone.reversible=true", "backbone.depth=2"]}
    cases = [
        Case([*run, *few], str(tmp_path / f"{name}-{sharded}"), sharded)
        for name, run in runs.items()
        for sharded in (False, True)
    ]
    found = in_ranks(cases, 2, tmp_path)
    apart = {}
    for number, (name, run) in enumerate(runs.items()):
        averaged, spread = found[2 * number : 2 * number + 2]
        apart[name, "sharded"] = difference(averaged, spread)
        if name not in DRAWING:
            alone = trained(Case([*run, *few], str(tmp_path / name)))
            apart[name, "alone"] = difference(averaged, alone)
    assert not {case: far for case, far in apart.items() if far > TOLERANCE}


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_of_four_resumes_bit_for_bit_and_under_other_numbers_nearly(tmp_path, sharded):
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
