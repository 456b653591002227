"""Apache Kafka from its Maven artifacts: brokers for comparison, and its command-line tools."""
