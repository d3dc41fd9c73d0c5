"""Compare layers of lra-bench with those of other packages: time and memory of a step, forward and backward pass.

Pairs of layers are defined in ``pair.py``, ``packages.py`` and ``hugging_face.py``. ``worker.py`` measures a pair in a
separate process, ``table.py`` and ``figure.py`` show the results, and ``__main__.py`` is the command.
"""
