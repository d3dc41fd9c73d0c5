"""Tasks on tables of the user's own: texts, pairs of texts or series of numbers with a class per row."""

from .task import Hub as Hub
from .task import Table as Table
