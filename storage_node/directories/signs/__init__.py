"""What a log directory shows before it fails: operations that had to be repeated, latency, read-only mounts, SMART."""
