"""Python's collector of cyclic garbage, kept from what lives as long as the process."""

from __future__ import annotations

import gc


def settle() -> None:
    """Collect once, and leave everything that is there now alone from then on.

    To be called when a process has loaded and started what it is made of. A full collection looks at every object, a
    hundred thousand of them after a start, and takes more than 50 ms of whichever thread it comes to, which may be the
    listener's: nobody is answered meanwhile.
    """
    gc.collect()
    gc.freeze()
