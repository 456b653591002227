"""Keeps idle followers caught up without recording each of their fetches: their fetch sessions vouch for them.

A request of a follower's fetch session (KIP-227) names only what has changed. What it omits it repeats: "I still have
everything before the offset that I named last". Recording that for every partition of every fetch would cost more the
more partitions are idle, so the leader does not. Instead the session *vouches* for a follower of a partition:

- `fetched` records every fetch that names the partition. If the follower is in the ISR and at the log end, its next
  fetches could only change its last caught-up time, and that is the time of the session's last fetch
  (`Voucher.fetched_at`). Until something changes, nothing more is recorded; an idle fetch of the session is O(1).
- An append ends this: under the mutex, after the log's new end is published, each follower with a voucher gets as its
  last caught-up time that of the session's last fetch, or the time at which the append began if that is earlier. At
  that moment the log ended at the follower's offset, so the follower had all of it. A fetch that arrives between the
  publication and the mutex therefore claims nothing about the new records. The session's next fetch then checks the
  partition, and so does each one until the follower is at the log end again.
- Any other change for which a fetch might matter ends it too: a newer row, a confirmed or rejected ISR, another leader
  epoch, the end of the leadership, another broker epoch. No session vouches for a follower outside the ISR: all its
  fetches count.
- A session that is closed or evicted, or that forgets the partition, stops vouching as of its last fetch.

Safety does not depend on these times. The high watermark, and with it acks=all, waits for the log end *offsets* of
every replica that may be in the ISR, and an offset is recorded only when a fetch names it. The times only decide when
the leader requests the removal of a member that is behind (replica.lag.time.max.ms); fewer replicas are waited for only
after the controller has confirmed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from storage_node.replication.isr import Follower

#: No time after which a session vouches for nothing.
UNBOUNDED = float("inf")


class Voucher(Protocol):
    """A follower's fetch session, for one partition; see the module's docstring."""

    @property
    def fetched_at(self) -> float:
        """The time of the session's last fetch."""
        ...

    def changed(self) -> None:
        """Make the session's next fetch check the partition; on any thread, under the leader's mutex."""
        ...


class Vouchers:
    """The vouchers of a partition, by follower; `followers` is the leader's recorded state. Under its mutex."""

    def __init__(self) -> None:
        self._vouchers: dict[int, Voucher] = {}

    def of(self, follower: int) -> Voucher | None:
        """Return the voucher of a follower, or None."""
        return self._vouchers.get(follower)

    def begin(self, follower: int, voucher: Voucher) -> None:
        """Start vouching."""
        self._vouchers[follower] = voucher

    def seen(self, followers: Mapping[int, Follower]) -> dict[int, Follower]:
        """Return all followers, as if each fetch of those with a voucher had been recorded."""
        found = dict(followers)
        for number, voucher in self._vouchers.items():
            found[number] = found[number].seen_again(voucher.fetched_at)
        return found

    def end(self, followers: dict[int, Follower], follower: int, upto: float = UNBOUNDED) -> None:
        """Stop vouching, and record what the session vouched for, up to the time `upto`."""
        voucher = self._vouchers.pop(follower, None)
        if voucher is not None:
            followers[follower] = followers[follower].seen_again(min(voucher.fetched_at, upto))

    def end_before(self, followers: dict[int, Follower], began: float) -> None:
        """Stop vouching for all followers at an append that began at this time."""
        for follower in tuple(self._vouchers):
            self.end(followers, follower, began)

    def end_all(self, followers: dict[int, Follower]) -> None:
        """Stop vouching for all followers, so that their next fetches are recorded."""
        for follower, voucher in tuple(self._vouchers.items()):
            self.end(followers, follower)
            voucher.changed()
