"""The retrieval task: whether two papers cite each other, in bytes."""

from .task import Retrieval as Retrieval
