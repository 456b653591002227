"""The workflows of plans. They need neither a controller nor nodes of ours: any Kafka cluster's admin API will do."""
