"""Benchmarks of plans: a simulated cluster of any size, and real ones."""
