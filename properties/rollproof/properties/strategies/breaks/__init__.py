"""Rollouts that break exactly one rule, each with the code that must answer it."""
