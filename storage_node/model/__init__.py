"""The kernel: values that the storage node, the activities and the workflows share, and how they travel.

Every module may import it, workflow code included: it needs the standard library alone, and decides nothing by a clock,
by chance or by I/O.
"""
