"""Run the cell on standard input and store what a loss of power would leave behind at each sync and rename of a file.

``python -m tests.faults.power_loss OUTPUT FOLDER`` writes a copy of the durable files in FOLDER to a numbered folder in
OUTPUT. A file has the content of its last fsync, or none. A name in a folder is durable after an fsync of the folder;
before that, the file system may have stored it or not, so both states are written.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from lra_bench.cells import run


class Disk:
    """What is durable: the content of files by inode, and the inodes by path."""

    def __init__(self, output: Path, root: Path) -> None:
        self.output, self.root = output, root
        self.contents: dict[int, bytes] = {}
        self.names: dict[Path, int] = {}
        self.written: set[frozenset[tuple[Path, bytes]]] = set()
        self._fsync, self._replace = os.fsync, os.replace
        os.fsync, os.replace = self.fsync, self.replace  # type: ignore[assignment]

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.contents[os.fstat(descriptor).st_ino] = path.read_bytes()
            return
        folder = path.readlink()
        self.names = {name: inode for name, inode in self.names.items() if name.parent != folder}
        self.names |= self.entries(folder)
        self.store(self.names)

    def replace(self, source: Path, target: Path) -> None:
        self._replace(source, target)
        folder = Path(target).absolute().parent
        self.store(self.names)
        self.store({**self.names, **self.entries(folder)})

    def entries(self, folder: Path) -> dict[Path, int]:
        """Return the inodes of the files in a folder."""
        return {folder / each.name: each.inode() for each in os.scandir(folder) if each.is_file()}

    def store(self, names: dict[Path, int]) -> None:
        """Write the durable files to a new folder, unless an earlier folder has the same."""
        files = {
            path.relative_to(self.root): self.contents.get(inode, b"")
            for path, inode in names.items()
            if path.is_relative_to(self.root) and not path.name.endswith(".lock")
        }
        if frozenset(files.items()) in self.written:
            return
        self.written.add(frozenset(files.items()))
        for name, content in files.items():
            path = self.output / str(len(self.written)) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    Disk(*map(Path, sys.argv[1:]))
    sys.exit(run.main())
