"""The image task: CIFAR-10 as a row of pixels."""

from .task import Image as Image
