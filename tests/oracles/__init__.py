"""Dense reference definitions of all mixers, one file per family; the files are collected automatically.

Each file defines ``ORACLES``, ``OUTPUTS`` or both. They map the class of a mixer to a function of the mixer, its input
x (B, N, E) and the mask ``seen`` of visible keys, which combines direction and padding: bool (N, N), or (B, 1, N, N)
with padding. Functions in ``ORACLES`` return attention weights (B, H, N, N) of a mixer with heads; functions in
``OUTPUTS`` return the output y (B, N, E) of a mixer without such weights. ``SMALL`` maps names of model files to
options under which the pattern of a mixer is visible within a few dozen tokens, unlike with its defaults.
"""

import pkgutil
from importlib import import_module

FAMILIES = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
ORACLES = {kind: oracle for family in FAMILIES for kind, oracle in getattr(family, "ORACLES", {}).items()}
OUTPUTS = {kind: oracle for family in FAMILIES for kind, oracle in getattr(family, "OUTPUTS", {}).items()}
SMALL = {name: options for family in FAMILIES for name, options in getattr(family, "SMALL", {}).items()}
