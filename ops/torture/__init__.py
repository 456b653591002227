"""A history checker modelled on Jepsen's Kafka test, and seeded fault injection for it."""
