"""The pathfinder task: whether two markers are joined by a path."""

from .task import Pathfinder as Pathfinder
