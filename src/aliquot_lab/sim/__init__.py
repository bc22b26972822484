"""The simulator: the production placement and token policies in virtual time, on your trace or a published one."""
