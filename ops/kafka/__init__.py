"""Apache Kafka from its Maven artifacts: a single broker beside ours, and its own tools."""
