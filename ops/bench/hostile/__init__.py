"""Hostile clients beside a well-behaved one: a table of attacks, and a runner for our node and Apache Kafka."""
