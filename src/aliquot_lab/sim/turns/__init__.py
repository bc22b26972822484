"""Programs that take turns on GPUs, in virtual time: the arbiter's own policies, other clocks and no GPU."""
