"""Implementations as the gate sees them: ours, the spec itself, nemo-gym, and a base for any reassembler class."""
