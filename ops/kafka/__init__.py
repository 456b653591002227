"""Apache Kafka from its Maven artifacts: one broker or several beside our nodes, and its own tools."""
