"""Add the fake CUDA device, with real numbers, to every Python process with this folder in ``PYTHONPATH``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.support.fake_cuda.device import add_device

add_device()

from tests.support.fake_cuda import values  # noqa: E402

values.install()
