"""The listops task: nested list operations."""

from .task import ListOps as ListOps
