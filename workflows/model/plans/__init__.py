"""Plans of reassignments: what an operator hands in, what it means for a cluster, and which part of it begins next.

All pure, for both kinds of cluster; `ClusterView` (values) is the cluster by its admin API.

    document, options                    the JSON of kafka-reassign-partitions with "options", strictly read, written
                                         in one canonical form
    moves, lanes, schedule, sharing      which moves are left and share a lane, which lanes begin now, what the others
                                         wait for, the slots that a lane uses and that plans share
    space, estimate, simulate            the space of each disk at the worst moment, the duration, a deadline
    window, adaptive                     windows and rates by the hour; throttles that follow the cluster's health
    gate, drift, recheck, verify         whether the cluster is healthy, a move still needed, much has changed since the
                                         check, everything in place and nothing left
    under_way                            what the heartbeats of a lane's step report of its moves
    generate                             plans that rehome makes: balance, drain, a broker added or removed
    running                              the plan while it runs
"""
