"""One safe endpoint over a fleet of single-slot basert-serve workers."""
