"""The joint CP-SAT model: partition, placement and ordering decided together."""
