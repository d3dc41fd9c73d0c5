"""The image task: CIFAR-10 as a sequence of pixels."""

from .task import Image as Image
