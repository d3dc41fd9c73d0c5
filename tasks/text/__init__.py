"""The text task: IMDb reviews in bytes."""

from .task import Text as Text
