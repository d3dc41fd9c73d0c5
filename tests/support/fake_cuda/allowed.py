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
}
"""Largest number of waits by name of the system and function that waits, and why it waits."""
