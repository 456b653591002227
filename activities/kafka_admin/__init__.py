"""Kafka's admin API for activities and commands: its client, what it returns as values, and its errors."""
