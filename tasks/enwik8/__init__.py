"""The enwik8 task: language modelling of Wikipedia in bytes."""

from .task import Enwik8 as Enwik8
