"""The archive that the task in docs/adding-a-task.md downloads; its bytes are the same on every machine."""

import io
import itertools
import random
import tarfile

ANIMALS = ("owl", "fox", "hen", "cat", "dog", "crow", "goat", "mole", "toad", "wren")
VERBS = ("sleep", "sing", "hide", "wait", "eat", "nest", "play", "rest")
PLACES = ("mill", "barn", "pond", "well", "gate", "wood", "hill", "road", "lake", "yard")


def archive() -> bytes:
    """Return a tar with ``train.tsv`` (2,400 lines) and ``test.tsv`` (800 lines) of label, tab and sentence."""
    lines = []
    for animal, verb, place in itertools.product(ANIMALS, VERBS, PLACES):
        lines += [f"1\tdoes the {animal} {verb} near the {place}", f"1\tnear the {place} does the {animal} {verb}"]
        lines += [f"0\tthe {animal} does {verb} near the {place}", f"0\tnear the {place} the {animal} does {verb}"]
    random.Random(0).shuffle(lines)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, part in (("train.tsv", lines[:2400]), ("test.tsv", lines[2400:])):
            content = "".join(f"{line}\n" for line in part).encode()
            member = tarfile.TarInfo(f"questions/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
