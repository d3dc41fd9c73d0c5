"""The text task: byte-level sentiment classification of IMDB reviews."""

from .task import Text as Text
