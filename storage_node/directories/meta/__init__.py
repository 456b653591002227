"""meta.properties of all log directories (KIP-858): the file, the plan of a start, and what is wrong."""
