"""What a class computes changes only together with the key of the cells that are built from it.

The outputs of all classes, built from the files of conf/ at a small size, equal the stored ones. See
``tests/support/golden_outputs.py``.
"""

from dataclasses import replace

import pytest

from lra_bench.config import effective
from lra_bench.models.linear.performer import Performer
from lra_bench.tasks.copy import CopyTask
from tests.support import golden_outputs
from tests.support.golden_outputs import CASES, computed, fault, stored

STORED = stored()
PERFORMER = "mixer performer"


@pytest.mark.one_in(4, 3)
@pytest.mark.parametrize("name", CASES)
def test_the_output_equals_the_stored_one(name):
    if problem := fault(name, STORED.get(name), computed(name)):
        pytest.fail(problem)


def test_every_stored_output_belongs_to_a_case():
    assert set(STORED) == set(CASES)


def test_stored_outputs_of_different_mixers_differ():
    """The comparison can detect a change: only files with options of the backbone or equal heads have equal outputs."""
    outputs, equal = {}, {}
    for name, each in STORED.items():
        if name.startswith("mixer "):
            outputs.setdefault(name.replace(",", "").split()[1], []).append(each.output)
    for mixer, found in outputs.items():
        equal.setdefault(str(found), []).append(mixer)
    assert [names for names in equal.values() if len(names) > 1] == [
        ["fixed_head_size", "gqa", "transformer", "transformer_modern"]
    ]


def test_a_changed_output_without_a_new_revision_is_found(monkeypatch):
    keys = Performer.key_features
    monkeypatch.setattr(Performer, "key_features", lambda self, k, context: keys(self, k * (1 + 1e-3), context))
    problem = fault(PERFORMER, STORED[PERFORMER], computed(PERFORMER))
    assert "raise `revision` of lra_bench.models.linear.performer.Performer" in problem
    assert "python -m tests.support.golden_outputs" in problem


def test_changed_data_without_a_new_revision_is_found(monkeypatch):
    draw = CopyTask.draw
    monkeypatch.setattr(CopyTask, "draw", lambda self, key, *numbers: draw(self, key + 1, *numbers))
    assert "task copy: the output changed (train, validation, test" in fault(
        "task copy", STORED["task copy"], computed("task copy")
    )


def test_a_raised_revision_needs_a_new_stored_output(monkeypatch):
    declared = effective.declared
    monkeypatch.setattr(effective, "declared", lambda target, option: replace(declared(target, option), revisions=[2]))
    found = replace(computed(PERFORMER), output={})
    assert "a revision changed; run" in fault(PERFORMER, STORED[PERFORMER], found)


def test_only_outputs_with_a_new_revision_are_replaced(monkeypatch, tmp_path, capsys):
    file = tmp_path / "outputs.json"
    chosen = ("position rope", "position alibi")
    monkeypatch.setattr(golden_outputs, "FILE", file)
    monkeypatch.setattr(golden_outputs, "CASES", {name: CASES[name] for name in chosen})
    assert golden_outputs.main(replace=False) == 0
    first = stored()
    assert first == {name: replace(STORED[name], output=each.output) for name, each in first.items()}
    text = file.read_text()
    changed = {"144 tokens": [9.0, 9.0, 9.0]}
    monkeypatch.setattr(
        golden_outputs, "computed", lambda name: replace(first[name], output=changed, covered=first[name].covered)
    )
    capsys.readouterr()
    assert golden_outputs.main(replace=False) == 1 and file.read_text() == text
    assert "raise `revision` of lra_bench.models.positions.rope" in capsys.readouterr().out
    monkeypatch.setattr(golden_outputs, "computed", lambda name: replace(first[name], output=changed, covered="new"))
    assert golden_outputs.main(replace=False) == 0
    assert all(each.output == changed and each.covered == "new" for each in stored().values())
