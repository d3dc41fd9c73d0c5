"""The public functions of ``lra_bench``, which do in Python what the commands do.

Each function imports what it needs when it is called, so that importing the package is fast.
"""

from lra_bench.errors import UserError as UserError

from .own_code import wrap as wrap
from .own_data import load_task as load_task
from .own_data import task_from as task_from
from .reading import Figures as Figures
from .reading import compare as compare
from .reading import diff as diff
from .reading import leaderboard as leaderboard
from .reading import list_models as list_models
from .reading import list_protocols as list_protocols
from .reading import list_tasks as list_tasks
from .reading import load_records as load_records
from .reading import plot as plot
from .running import Results as Results
from .running import bench as bench
from .running import card as card
from .running import check as check
from .running import evaluate as evaluate
from .running import load_model as load_model
from .running import profile as profile
