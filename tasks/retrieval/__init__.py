"""The retrieval task: byte-level classification of whether one of two papers cites the other."""

from .task import Retrieval as Retrieval
