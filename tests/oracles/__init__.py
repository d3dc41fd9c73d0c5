"""The definition of every mixer, written out densely: one file per family, found by their place here.

Each file has ``ORACLES``, ``OUTPUTS`` or both: from the class of a mixer to a function of the mixer, its rows x, and
what direction and padding let be seen, bool (N, N), or (B, 1, N, N) where rows are padded. ``ORACLES`` give the weights
(B, H, N, N) of a mixer of heads, ``OUTPUTS`` give y (B, N, E) of what has no such weights. ``SMALL`` are options, by
the name of the model file, under which a mixer shows its pattern at a few dozen tokens, where its defaults would not.
"""

import pkgutil
from importlib import import_module

FAMILIES = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
ORACLES = {kind: oracle for family in FAMILIES for kind, oracle in getattr(family, "ORACLES", {}).items()}
OUTPUTS = {kind: oracle for family in FAMILIES for kind, oracle in getattr(family, "OUTPUTS", {}).items()}
SMALL = {name: options for family in FAMILIES for name, options in getattr(family, "SMALL", {}).items()}
