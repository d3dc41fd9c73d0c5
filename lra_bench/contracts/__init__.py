"""Types and interfaces shared by tasks, models, launchers and the harness.

This package does not import torch at run time, so that listing and planning are fast.
"""

from typing import TYPE_CHECKING

from lra_bench.errors import Unwritable as Unwritable
from lra_bench.errors import UserError as UserError
from lra_bench.errors import install_command as install_command

from .examples import NOT_SCORED as NOT_SCORED
from .examples import Batch as Batch
from .examples import Direction as Direction
from .examples import Kind as Kind
from .examples import TaskSpec as TaskSpec
from .launcher import CellJob as CellJob
from .launcher import Launcher as Launcher
from .launcher import Outcome as Outcome
from .model import DECLARABLE as DECLARABLE
from .model import Accelerable as Accelerable
from .model import Adjustable as Adjustable
from .model import Capability as Capability
from .model import DepthBudget as DepthBudget
from .model import DepthCalibration as DepthCalibration
from .model import DepthController as DepthController
from .model import Finished as Finished
from .model import Output as Output
from .model import Prepared as Prepared
from .model import Pretrainable as Pretrainable
from .model import Readable as Readable
from .model import Remembering as Remembering
from .model import Stepped as Stepped
from .task import DataCache as DataCache
from .task import MinimalPairs as MinimalPairs
from .task import Provenance as Provenance
from .task import Slicing as Slicing
from .task import Task as Task
from .task import TaskScore as TaskScore

if TYPE_CHECKING:
    from .task import FloorRows as FloorRows
