"""The read model: what is known of GPUs, the tenants on them and their nodes at one moment. Pure; above the model."""
