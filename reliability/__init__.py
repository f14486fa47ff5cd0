"""Longer runs against real components: a soak with faults on, and outages played one at a time."""
