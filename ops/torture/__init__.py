"""A history checker in the manner of Jepsen's Kafka test, and the seeded faults that give it something to find."""
