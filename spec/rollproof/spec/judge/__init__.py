"""The harness side of the contract: requests, the contract's answers to them, and the catalogue of invariants.

No chapter of the contract imports anything from here.
"""
