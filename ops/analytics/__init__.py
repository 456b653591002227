"""Reports over exported histories: a Spark job from events to tables, a printed table and one HTML page."""
