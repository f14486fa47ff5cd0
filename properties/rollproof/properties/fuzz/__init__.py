"""Fuzzing: longer runs than the gate's, steered by coverage, and hostile inputs held against limits."""
