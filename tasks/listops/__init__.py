"""The listops task: evaluation of nested list operations."""

from .task import ListOps as ListOps
