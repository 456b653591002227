"""Classic consumer groups: their members, assignments and committed offsets.

`group` is the state machine of one group (without a clock or network), `coordinator` drives the groups that this node
coordinates, `store` keeps offsets and memberships on disk, `placement` computes which node coordinates a group, and
`handover` transfers a group to its new coordinator.
"""
