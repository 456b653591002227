"""The activities of plans: they read the cluster and change it through Kafka's admin API alone."""
