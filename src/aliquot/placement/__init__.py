"""Which GPU, and why: the ledger of a cluster, policies, and explanations. Pure: no clock, no chance, no files."""
