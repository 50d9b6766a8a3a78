"""One per Mac: supervises its workers, and runs, judges and releases one lease at a time on each."""
