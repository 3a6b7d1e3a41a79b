"""Pools of threads that survive a fork."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class ThreadPool(ThreadPoolExecutor):
    """An executor that a forked process can go on using."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, thread_name_prefix=name)
        self._arguments = (size, name)

    def forget(self) -> None:
        """Start anew in a forked process: the executor would wait for threads that are not there."""
        size, name = self._arguments
        super().__init__(size, thread_name_prefix=name)
