"""Synchronisations with the host that systems need, each with its reason; the tests permit no others."""

ALLOWED = {
    ("adaptive_span", "largest"): (
        3,
        "the largest learned span sets the size of the window: read after each of two steps, all layers together, and "
        "once before the first",
    ),
    ("adaptive_span_dynamic", "largest"): (
        4,
        "the largest span, predicted from the tokens, sets the size of the window: read in each of four forward passes",
    ),
    ("universal", "_halting"): (
        32,
        "whether all tokens have stopped ends the steps: read after each of eight steps in four forward passes",
    ),
}
"""Largest number of waits by name of the system and function that waits, and why it waits."""
