"""The cache of the newest cluster image."""

from __future__ import annotations

import threading

from storage_node.metadata.cache import MetadataCache
from storage_node.model.image import ClusterImage


def test_publish_wakes_threads_that_wait_for_the_version() -> None:
    cache = MetadataCache()
    image = ClusterImage("c", 1, 5)
    seen: list[int] = []
    waiter = threading.Thread(target=lambda: seen.append(cache.wait_for_version(5, 10)))
    waiter.start()
    with cache.listening(lambda published: seen.append(published.version)):
        cache.publish(image)
    waiter.join()
    cache.publish(ClusterImage("c", 1, 6))
    assert sorted(seen) == [True, 5]
    assert not cache.wait_for_version(7, 0.01)
