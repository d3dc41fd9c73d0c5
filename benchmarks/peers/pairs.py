"""The list of all pairs."""

from .hugging_face import HUGGING_FACE
from .packages import PACKAGES

PAIRS = (*PACKAGES, *HUGGING_FACE)
