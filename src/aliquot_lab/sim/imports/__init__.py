"""Other systems' records of jobs, read into a trace that `aliquot sim run` takes."""
