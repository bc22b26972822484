"""The webhook that the API server calls before it admits a pod, a SharePod or a quota, and its certificates."""
