"""Strategies: valid histories first, then one targeted break per rejection code, then hostile input."""
