"""A file system with fault injection (errors, hangs, slow disks) for the tests and the torture."""
