"""Hostile clients beside a well-behaved one: attacks as a table, one runner for our node and Apache Kafka's broker."""
