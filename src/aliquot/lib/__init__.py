"""What several packages need and no decider may use: files, memory that is bounded, the version of the package."""
