"""The admission webhook: what the API server asks before it takes a pod, a SharePod or a quota."""
