"""The limit on a kernel's memory: a worker that outgrows it is ended, before the machine ends something else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from attnspec.spec.errors import InputError

SHARE = 0.75  # of the memory that is free at the start, for all workers together
MOST = 2**20  # GiB
INTERVAL = 0.1  # seconds between two looks


class MemoryLimit:
    """Watches the children of this process. gib: what each may have, by default its share of what is free."""

    def __init__(self, workers: int, gib: float | None = None) -> None:
        if gib is not None and not 0 < gib < MOST:
            raise InputError(f"memory is {gib} GiB: use a number above 0 and below {MOST}")
        free = psutil.virtual_memory().available
        self.bytes = int(gib * 2**30) if gib else int(SHARE * free / max(workers, 1))
        self.outgrown: set[int] = set()

    @property
    def ended(self) -> int:
        """How many processes outgrew the limit."""
        return len(self.outgrown)

    @property
    def gib(self) -> float:
        """The limit of each worker, in GiB."""
        return self.bytes / 2**30

    @contextmanager
    def watch(self) -> Iterator[None]:
        """End, while the block runs, every child that holds more than the limit."""
        over = threading.Event()
        watcher = threading.Thread(target=self._look, args=(over,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _look(self, over: threading.Event) -> None:
        me = psutil.Process()
        while not over.wait(INTERVAL):
            for child in me.children(recursive=True):
                try:
                    if child.pid not in self.outgrown and child.memory_info().rss > self.bytes:
                        self.outgrown.add(child.pid)
                        child.kill()
                except psutil.Error:  # it ended by itself
                    continue
