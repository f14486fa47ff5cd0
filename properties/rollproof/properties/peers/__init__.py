"""Public frameworks as implementations, each in an environment of its own: ``peer:NAME``."""
