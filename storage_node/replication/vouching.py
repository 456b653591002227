"""Who says for an idle follower that it has everything, without each of its fetches being noted.

A follower's fetch session (KIP-227) names only what has changed. What it leaves out it repeats: "I still have
everything before the offset that I named last". A leader that noted this for every partition of every fetch would
spend more the more partitions do nothing, so it does not. Instead the session *vouches* for a follower of a partition:

- `fetched` notes a fetch that names the partition, as ever. If the follower is in the ISR and at the log's end, its
  next fetches could change nothing except "when it had caught up last", and that is the time of the session's last
  fetch (`Voucher.fetched_at`). Until something changes nothing more is noted; the session's idle fetch is O(1).
- An append ends this: under the mutex, after the log's new end is published, each follower that is vouched for gets as
  its last caught-up time that of the session's last fetch, or the time at which the append began if that is earlier. At
  that moment the log ended at the follower's offset, so the follower had all of it. A fetch that comes between the
  publication and the mutex therefore claims nothing about the new records. The partition is then looked at by
  the session's next fetch, and by each one until the follower is at the log's end again.
- So does everything else by which a fetch might matter: a newer row, a confirmed or refused ISR, another leader epoch,
  the end of the leadership, another broker epoch. A follower outside the ISR is never vouched for: all its fetches
  count.
- A session that is closed or evicted, or that forgets the partition, stops vouching at its last fetch.

Safety does not rest on these times at all. The high watermark, and with it acks=all, waits for the log end *offsets* of
everybody who may be in the ISR, and an offset is noted only when a fetch names it. The times decide alone when a member
that is behind is given up (replica.lag.time.max.ms), which makes fewer replicas wait for, after the controller agreed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from storage_node.replication.isr import Follower

NEVER = float("inf")


class Voucher(Protocol):
    """A follower's fetch session, as far as one partition is concerned; see the module."""

    @property
    def fetched_at(self) -> float:
        """When the session's last fetch came."""
        ...

    def changed(self) -> None:
        """Have the session's next fetch look at the partition; on any thread, under the leader's mutex."""
        ...


class Vouchers:
    """Those of one partition, by follower; `followers` is what the leader has noted. Under the leader's mutex."""

    def __init__(self) -> None:
        self._vouchers: dict[int, Voucher] = {}

    def of(self, follower: int) -> Voucher | None:
        """Who vouches for a follower."""
        return self._vouchers.get(follower)

    def begin(self, follower: int, voucher: Voucher) -> None:
        """It vouches from now on."""
        self._vouchers[follower] = voucher

    def seen(self, followers: Mapping[int, Follower]) -> dict[int, Follower]:
        """All followers, as if each fetch of those that are vouched for had been noted."""
        found = dict(followers)
        for number, voucher in self._vouchers.items():
            found[number] = found[number].seen_again(voucher.fetched_at)
        return found

    def end(self, followers: dict[int, Follower], follower: int, upto: float = NEVER) -> None:
        """Note what was vouched for, as far as up to this time, and nothing from now on."""
        voucher = self._vouchers.pop(follower, None)
        if voucher is not None:
            followers[follower] = followers[follower].seen_again(min(voucher.fetched_at, upto))

    def end_before(self, followers: dict[int, Follower], began: float) -> None:
        """An append that began then has ended what anybody vouched for."""
        for follower in tuple(self._vouchers):
            self.end(followers, follower, began)

    def end_all(self, followers: dict[int, Follower]) -> None:
        """Each next fetch counts, for whatever reason."""
        for follower, voucher in tuple(self._vouchers.items()):
            self.end(followers, follower)
            voucher.changed()
