"""Decisions only: pure, without I/O, event loop or clock. Time comes in as an argument."""
