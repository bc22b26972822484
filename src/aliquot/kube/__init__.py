"""Kubernetes access: objects, client, cache, leases, and the dialects in which pods request GPUs."""
