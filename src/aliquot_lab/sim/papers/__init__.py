"""The published experiments, each by one command, ours beside theirs."""
