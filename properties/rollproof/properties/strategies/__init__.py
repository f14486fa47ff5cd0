"""Hypothesis strategies over requests of the contract.

``histories`` draws valid rollouts, ``groups`` draws groups of them, ``breaks`` turns them into rollouts that one rule
rejects, ``hostile`` draws what no rollout ever looked like, and ``requests`` lists all of it as named streams.
"""
