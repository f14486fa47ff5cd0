"""The peer nemo-gym: its adapter, its declared deviations, and histories from its own capture."""
