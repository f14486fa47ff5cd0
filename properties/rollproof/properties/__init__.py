"""Hypothesis properties that hold an implementation of the rollout contract against its spec."""
