"""Plans that rehome makes itself: balance, drain, add and remove brokers. Deterministic, with the fewest bytes."""
