"""One layer of ours against the like of other packages: time and memory of a step, forward and backward.

A pair is data (``pair.py``, ``packages.py``, ``hugging_face.py``); ``worker.py`` measures one in a process of its own,
``table.py`` and ``figure.py`` tell what was found, ``__main__.py`` is the command.
"""
