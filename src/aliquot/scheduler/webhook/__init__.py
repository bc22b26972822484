"""The admission webhook: called by the API server before it admits a pod, a SharePod or a quota."""
