"""The processes that work together, and their messages through torch's store.

Messages are few and small, so the store that every launcher provides is enough. It works with any
backend, and a wait can end as soon as a rank reports a failure. Anyone who can reach the store can
write to it, so messages are JSON, which can be wrong but cannot run code.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch import distributed
from torch.distributed import HashStore, PrefixStore, Store, rendezvous  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_store

from glft_schema.errors import OptionError, alternatives, one_line

TIMEOUT = 600.0  # seconds without progress
LONGEST_NAP = 1.0  # seconds between two checks of the store
LONGEST = 1000  # characters of an error
GRACE = 5.0  # seconds to wait for the other ranks to end
FAILED, MOVED, LEFT = "failed", "moved", "left"

_USES: dict[str, Iterator[int]] = defaultdict(itertools.count)  # by the ranks of a group


class RanksError(RuntimeError):
    """A failure of one rank, raised on all of them."""


class Ranks:
    """This process among those that work together.

    Attributes:
        rank: its number.
        count: the number of processes.

    Args:
        store: a store that all processes can reach.
        rank: as above.
        count: as above.
        timeout: seconds that a rank waits for the others while none of them makes progress.
    """

    def __init__(self, store: Store, rank: int, count: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.count = rank, count
        self._store, self._timeout = store, timeout
        self._step = 0

    @classmethod
    def of_process_group(cls, timeout: float = TIMEOUT, group: distributed.ProcessGroup | None = None) -> Ranks:
        """Returns the ranks of a process group, the default one by default; one rank if there is
        none.

        All ranks of the group must call it the same number of times.
        """
        if not distributed.is_initialized():
            return cls(HashStore(), 0, 1, timeout)
        members = "-".join(map(str, distributed.get_process_group_ranks(group)))
        store = PrefixStore(f"glft_schema/{members}/{next(_USES[members])}", _get_default_store())
        return cls(store, distributed.get_rank(group), distributed.get_world_size(group), timeout)

    @classmethod
    def of_environment(cls, timeout: float = TIMEOUT) -> Ranks:
        """Returns the ranks of a launcher such as torchrun; one rank if there is none.

        Raises:
            RanksError: if the store cannot be reached.
        """
        if "WORLD_SIZE" not in os.environ:
            return cls(HashStore(), 0, 1, timeout)
        try:
            store, rank, count = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout))))
        except (RuntimeError, ValueError) as error:
            raise RanksError(f"rank {os.environ.get('RANK', '?')}: no store: {_first_line(error)}") from error
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps the store
        return cls(PrefixStore(f"glft_schema/{attempt}", store), rank, count, timeout)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which begins and commits files."""
        return self.rank == 0

    def gather(self, value: Any, look: Callable[[int], object] = lambda moved: None) -> list[Any]:
        """Returns the values of all ranks, on each rank. All ranks must call it equally often.

        Args:
            value: this rank's value, which JSON can hold; tuples become lists.
            look: called while waiting, with the progress of all ranks; see `move`.

        Raises:
            RanksError: if a rank has failed, or no rank makes progress within the timeout.
        """
        self._step += 1
        key = f"step {self._step}"
        with self._reaching():
            self._store.set(f"{key} {self.rank}", json.dumps(value))
            if self.is_first:
                found = [self._wait(f"{key} {rank}", rank, look) for rank in range(self.count)]
                self._store.set(key, json.dumps(found))
                return found
            values: list[Any] = self._wait(key, 0, look)
            return values

    def of_first(self, value: Any) -> Any:
        """Returns the value of rank 0, on all ranks. Raises as `gather`."""
        return self.gather(value if self.is_first else None)[0]

    def agree(self, **told: str) -> None:
        """Raises OptionError unless all ranks pass the values of rank 0; names are in the plural.

        Also raises as `gather`.
        """
        found = self.gather(told)
        for what in told:
            check_equal([each[what] for each in found], what)

    def move(self, amount: int) -> int:
        """Adds to the progress of all ranks. Returns the sum."""
        with self._reaching():
            self._check_failed()
            return int(self._store.add(MOVED, amount))

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Reports an error in the block to all ranks, which raise RanksError at their next step."""
        try:
            yield
        except RanksError:
            raise
        except BaseException as error:
            self.fail(describe_error(error))
            raise

    def fail(self, problem: str) -> None:
        """Makes all other ranks raise RanksError. Only the first problem is kept."""
        with suppress(RuntimeError):  # the store is gone, which they notice themselves
            if not self._store.check([FAILED]):
                self._store.set(FAILED, f"rank {self.rank}: {problem}")

    def leave(self) -> None:
        """Tells the others that this process is about to end.

        Rank 0, which may hold the store, waits until all have said so, at most `GRACE` seconds.
        """
        with suppress(RuntimeError):
            gone, until = self._store.add(LEFT, 1), time.monotonic() + GRACE
            while self.is_first and gone < self.count and time.monotonic() < until:
                time.sleep(0.02)
                gone = self._store.add(LEFT, 0)

    def _check_failed(self) -> None:
        if self._store.check([FAILED]):
            raise RanksError(self._store.get(FAILED).decode("utf-8", "replace"))

    def _wait(self, key: str, rank: int, look: Callable[[int], object]) -> Any:
        """Returns the value that another rank sets."""
        seen, since, nap = -1, time.monotonic(), 0.001
        while not self._store.check([key]):
            self._check_failed()
            moved, now = int(self._store.add(MOVED, 0)), time.monotonic()
            if moved != seen:
                seen, since = moved, now
                look(moved)
            if now - since > self._timeout:
                self.fail(f"rank {rank} does not answer: no progress for {self._timeout:g} seconds")
                self._check_failed()
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)
        try:
            return json.loads(self._store.get(key))
        except ValueError:
            raise RanksError(f"rank {self.rank}: expected JSON of rank {rank} in the store, found other bytes") from None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raises RanksError if the store is gone."""
        try:
            yield
        except RanksError:
            raise
        except RuntimeError as error:  # also torch's DistNetworkError and DistStoreError
            raise RanksError(f"rank {self.rank}: the store of the ranks is gone: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Returns an error of torch without the stack in C++ that may follow."""
    return one_line(str(error).strip().partition("\n")[0])


def describe_error(error: BaseException) -> str:
    """Returns an error as one line."""
    known = isinstance(error, (OSError, ValueError))
    return one_line(str(error) if known else f"{type(error).__name__}: {error}", LONGEST)


def check_equal(found: list[Any], what: str) -> None:
    """Raises OptionError with the ranks whose value differs from rank 0's, if any.

    Args:
        found: values by rank.
        what: a plural noun for the values.
    """
    others = [rank for rank, value in enumerate(found) if value != found[0]]
    if others:
        ranks = f"rank{'s' * (len(others) > 1)} {alternatives(map(str, others[:8]))}"
        raise OptionError(f"{ranks}: expected the {what} of rank 0, {found[0]}, found {found[others[0]]}")
