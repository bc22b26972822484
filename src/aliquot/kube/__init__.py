"""Kubernetes as the programs see it: objects, client, cache, leases, and the words in which pods ask for GPUs."""
