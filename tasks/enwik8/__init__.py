"""The enwik8 task: byte-level language modelling of Wikipedia."""

from .task import Enwik8 as Enwik8
