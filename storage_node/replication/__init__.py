"""Replication: leaders keep their in-sync replicas and the high watermark, followers copy what leaders have."""
