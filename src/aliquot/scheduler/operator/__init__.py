"""SharePods and quotas: creates their pods and writes the results into their status."""
