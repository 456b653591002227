"""Plans of reassignments: what an operator hands in, what it means for a cluster, and which part of it begins next."""
