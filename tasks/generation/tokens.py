"""Ids of the tokens of tasks whose answer is generated; id 0 is reserved for padding."""

BLANK, SEPARATOR, FIRST = 1, 2, 3
"""The blank, the separator of source and answer, and the first symbol."""
