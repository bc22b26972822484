"""What kube-scheduler calls: filter, prioritize, preempt and bind, and evictions for fragments."""
