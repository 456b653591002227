"""How long Spark takes for a history, and for what came after it."""
