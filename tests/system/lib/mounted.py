"""A folder as Kubernetes mounts a ConfigMap or a Secret: each file is a link to ..data/FILE, and ..data a link to a folder with the
content. A change makes a new folder and renames a new link over ..data, so that all files change at once and none is written."""
import itertools
import os
import shutil
from pathlib import Path


class Mount:
    def __init__(self, folder, files):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self._turns = itertools.count(1)
        self.swap(files)
        for name in files:
            (self.folder / name).symlink_to(f"..data/{name}")

    def swap(self, files):
        """The kubelet's steps (AtomicWriter): a folder with a time in its name, a link, a rename, the old folder removed."""
        current = self.folder / "..data"
        old = os.readlink(current) if current.is_symlink() else None
        fresh = self.folder / f"..2026_11_18_00_00_00.{next(self._turns)}"
        fresh.mkdir()
        for name, text in files.items():
            (fresh / name).write_text(text, encoding="utf-8")
        link = self.folder / "..data_tmp"
        link.symlink_to(fresh.name)
        link.replace(current)
        if old:
            shutil.rmtree(self.folder / old)

    def __truediv__(self, name):
        return self.folder / name
