"""Classic consumer groups: who is in a group, what each member reads, and how far it has come.

`group` is the state machine of one group (it knows neither clock nor network), `coordinator` drives those that this
node coordinates, `store` keeps offsets and memberships on disk, `placement` says which node coordinates which group,
`handover` brings a group to the node that coordinates it from now on.
"""
