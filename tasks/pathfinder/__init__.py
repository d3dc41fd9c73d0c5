"""The pathfinder task: classification of whether a path joins two markers."""

from .task import Pathfinder as Pathfinder
