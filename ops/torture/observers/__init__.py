"""What observes a cluster during a torture: swaps, copies, leader epochs, containers."""
