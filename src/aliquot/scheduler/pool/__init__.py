"""vGPUs: GPUs that have a name, created when they are needed and kept as long as the pool's policy says."""
