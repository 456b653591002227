"""A file system that fails, hangs and slows down on demand, for tests and for the torture."""
