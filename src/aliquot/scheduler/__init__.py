"""The scheduler side in a cluster: the extender that the stock kube-scheduler calls, and its ledger."""
