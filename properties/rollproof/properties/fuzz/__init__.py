"""Fuzzing: longer runs than the gate's, guided by coverage, and hostile inputs checked against limits."""
