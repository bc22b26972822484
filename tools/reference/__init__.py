"""The pages of docs/reference, one module each."""
