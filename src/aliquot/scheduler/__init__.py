"""The scheduler side in a cluster: the extender that the stock kube-scheduler asks, and its books."""
