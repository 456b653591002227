"""A running plan: its parameter, its activities' calls, its lanes' states, and what a view of the cluster means."""
