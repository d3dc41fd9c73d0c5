"""Files of kept weights: equal models have equal files, also if layers share a position encoding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lra_bench.training.checkpoint import BEST, NEXT, Checkpoints
from tests.support.model_cases import initial_model, task

ROOT = Path(__file__).parents[2]
SHARING = {"position": "transformer_xl", "depth": 4}


def written(folder, **options):
    """Write the weights of a small model, and return the bytes of the file."""
    folder.mkdir()
    Checkpoints(folder, 0).keep_best(initial_model(task(), **options))
    return (folder / NEXT).read_bytes()


def test_equal_models_with_shared_tensors_have_equal_files(tmp_path):
    assert len({written(tmp_path / str(n), **SHARING) for n in range(4)}) == 1


@pytest.mark.slow
def test_files_of_two_processes_are_equal(tmp_path):
    script = "import sys; from pathlib import Path; from tests.training.test_kept_weights import SHARING, written"
    for seed in ("1", "2"):
        command = [sys.executable, "-c", f"{script}; written(Path(sys.argv[1]), **SHARING)", str(tmp_path / seed)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    assert (tmp_path / "1" / NEXT).read_bytes() == (tmp_path / "2" / NEXT).read_bytes()


@pytest.mark.parametrize("options", [SHARING, {}], ids=["shared", "separate"])
def test_weights_are_restored(tmp_path, options):
    written(tmp_path / "one", **options)
    (tmp_path / "one" / NEXT).rename(tmp_path / "one" / BEST)
    one, other = (initial_model(task(), weights=seed, **options) for seed in (0, 1))
    Checkpoints(tmp_path / "one", 0).load_best(other)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
