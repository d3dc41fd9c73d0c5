"""The grid ``modifications``, and the table of the paper's and our numbers."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import modifications
from benchmarks.modifications import BASELINE, MARKS, cells
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import Batch
from lra_bench.grid.expand import grid_parts
from tests.support.record_factory import make_record

LARGER = {
    "Block sharing",
    "Block sharing + factorized embeddings",
    "Block sharing + factorized & shared embeddings",
    "Dynamic convolution",
    "Mixture of experts",
    "Product key memory",
    "Switch Transformer",
    "Universal Transformer",
    *(f"Synthesizer ({name})" for name in ("dense", "dense plus", "dense plus alpha", "factorized")),
    *(f"Synthesizer ({name})" for name in ("random", "random plus", "random plus alpha")),
}
"""Rows whose number of parameters differs from that of the baseline in the paper too."""
WITHOUT_CELL = {
    "8 layers",
    "Decoder only block sharing",
    "Encoder only block sharing",
    "Tied encoder/decoder input embeddings",
    "Untied embeddings",
}
"""Rows of the paper without an equivalent in two layers without a decoder."""


@pytest.mark.slow
def test_every_row_of_the_paper_has_a_cell_unless_it_is_named():
    titles = {title for title, _ in cells()}
    assert titles == set(modifications.published()) - WITHOUT_CELL
    seeds = [(title, part["seed"]) for title, part in grid_parts("modifications")]
    assert all((seed == "seed=0,1,2,3,4") == (title == BASELINE) for title, seed in seeds)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["listops", "enwik8"])
def test_cells_build_and_have_as_many_parameters_as_the_baseline(task):
    configs = {title: cell.config for (title, name), cell in cells().items() if name == task}
    spec = build_task(configs[BASELINE]).spec
    batch = Batch(torch.tensor([32, 9]), torch.zeros(2, 32).long(), torch.randint(10, (2, 32)))
    totals = {}
    for title, config in configs.items():
        network = build_model(config, spec).train()
        output = network(batch)
        assert output.logits.isfinite().all(), title
        parts = network.parameter_parts()
        totals[title] = parts["total"]
        if title in ("Mixture of experts", "Switch Transformer"):
            assert abs(parts["body_active"] / (67_072) - 1) < 0.01
    differ = {title for title, total in totals.items() if abs(total / totals[BASELINE] - 1) > 0.01}
    assert differ <= LARGER and "Mixture of experts" in differ


def test_the_published_table_has_a_final_loss_in_every_row():
    rows = modifications.published()
    assert len(rows) == 52 and all(1.7 < row["final_loss"] < 2.4 for row in rows.values())
    assert all(row["early_loss"] is None or row["early_loss"] > row["final_loss"] for row in rows.values())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 0, 4, 2, 3], [2, 2, 0, 1, 1]])
def test_tau_counts_pairs_in_the_same_order(order):
    found, low, high = modifications.tau(range(5), order)
    signs = [(b > a) - (b < a) for a, b in itertools.combinations(order, 2)]
    ties = sum(sign == 0 for sign in signs)
    assert found == pytest.approx(sum(signs) / (10 * (10 - ties)) ** 0.5)
    assert -1 <= low <= found <= high <= 1


def record(title, task, seed, score):
    cell = cells()[title, task]
    metric = {"accuracy": score, "bits_per_character": score, "loss": 1.0, "n": 10}
    options = {
        "config": as_dict(replace(cell.config, seed=seed)),
        "metrics": {"test": metric},
        "protocol_modified": list(cell.modified),
        "variant": {"label": title, "differences": cell.differences, "position": None},
    }
    return make_record("transformer", task, seed, protocol="quick-v2", **options)


@pytest.mark.slow
def test_records_are_assigned_to_rows_by_their_options():
    scores = {(BASELINE, 0): 3.0, (BASELINE, 1): 3.2, ("SwiGLU", 0): 2.9, ("ELU", 0): 3.1, ("Fixup", 0): 3.5}
    records = [record(title, "enwik8", seed, score) for (title, seed), score in scores.items()]
    records.append(replace(records[0], status="failed"))
    ours = modifications.measured(records)
    assert {key: [*row.scores] for key, row in ours.items()} == {
        (BASELINE, "enwik8"): [3.0, 3.2],
        **{(title, "enwik8"): [scores[title, 0]] for title in ("SwiGLU", "ELU", "Fixup")},
    }
    text = modifications.table(modifications.published(), ours)
    total = f"{records[0].parameters['total']:,}"
    assert f"| SwiGLU | 223 M | 2.127 | 1.789 | 76.00 | 18.20 | 24.34 | {total} | **2.900** |  |" in text
    assert (
        f"| Vanilla Transformer | 223 M | 2.182 | 1.838 | 71.66 | 17.78 | 23.02 | {total} | 3.100 ± 0.141 (2) |" in text
    )
    assert (
        "| final loss | bits per byte, enwik8 | 3 | 1.00 (" in text and "| SGLUE | accuracy, ListOps | 0 |  |" in text
    )


def test_the_table_replaces_the_part_of_the_document_between_its_marks(tmp_path: Path):
    document = tmp_path / "table.md"
    document.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    modifications.main([str(tmp_path / "results"), str(document)])
    text = document.read_text()
    assert text.startswith(f"before\n{MARKS[0]}\n\n| theirs |") and text.endswith(f"\n\n{MARKS[1]}\nafter\n")
    assert "old" not in text
    with pytest.raises(SystemExit, match="has no line"):
        document.write_text("no marks")
        modifications.main([str(tmp_path / "results"), str(document)])
