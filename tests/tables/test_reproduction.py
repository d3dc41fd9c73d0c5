"""The layout ``reproduction``: which rows it contains, and how their scores compare with published ones."""

from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.published import published_bands
from tests.support.record_factory import make_record

REPRODUCTION = LAYOUTS["reproduction"]


def test_band_is_that_of_papers_with_the_same_set_up():
    bands = published_bands()
    assert sorted(bands["Transformer", "listops"]) == [36.0, 37.1, 37.11, 38.37]
    assert ("Transformer", "enwik8") not in bands
    assert 57.46 not in bands["Transformer", "retrieval"]  # of Long Range Arena, with another output layer


def test_score_is_inside_above_or_below_its_band():
    records = [
        *(make_record("transformer", seed=seed, protocol="small-v2", accuracy=0.37) for seed in (0, 1)),
        make_record("linformer", protocol="small-v2", accuracy=0.41),
        make_record("performer", protocol="small-v2", accuracy=0.10),
    ]
    frame = REPRODUCTION.make(records).set_index("model")
    assert frame["outcome"].to_dict() == {
        "Linformer": "3.5 points above",
        "Performer": "8.8 points below",
        "Transformer": "inside",
    }
    assert frame.loc["Transformer", "scores"] == "37.0, 37.0"
    (section,) = REPRODUCTION.sections(frame.reset_index())
    shown = section.table.set_index("model").loc["Transformer"]
    assert section.title == "listops · small-v2"
    assert shown["published"] == "36.0 to 38.4 (4)" and str(shown["score"]).count(",") == 1


def test_other_protocols_variants_models_and_failed_cells_are_left_out():
    records = [
        make_record("transformer", protocol="quick"),
        make_record("transformer", protocol="small-v2", status="failed"),
        make_record("transformer", protocol="small-v2-searched"),
        make_record("transformer", protocol="small-v2", differences={"model.mixer.x": 1}),
        make_record("transformer", protocol="small-v2", protocol_modified=["train.lr"]),
        make_record("mamba", protocol="small-v2"),
    ]
    assert REPRODUCTION.make(records).empty
