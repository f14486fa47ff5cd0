"""Hypothesis strategies over requests of the contract.

``rollouts`` builds and draws valid rollouts, ``breaks`` turns them into rollouts that one rule rejects, ``hostile``
draws values that no rollout ever contained, and ``streams`` lists the requests of each area as named streams.
"""
