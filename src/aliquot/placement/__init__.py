"""Which GPU, and why: the books of a cluster, policies, and explanations. Pure: no clock, no chance, no files."""
