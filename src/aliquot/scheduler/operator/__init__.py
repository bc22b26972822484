"""SharePods and quotas: what people write becomes pods, and what became of it is written back."""
