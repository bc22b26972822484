"""Kubernetes access: objects, client, cache, and the dialects in which pods request GPUs."""
