"""The openb benchmark (FGD, USENIX ATC'23): its arrivals, its metrics and its result files, reproduced exactly."""
