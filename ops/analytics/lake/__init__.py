"""Reading and writing: exports as a Spark data source, tables in Delta Lake, and the batch from one to the other."""
