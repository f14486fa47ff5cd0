"""Requests per area, as named streams: one module per area."""
