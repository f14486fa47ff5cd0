"""A state machine over finalizers: groups in flight, a data plane that fails, crashes, and recovery."""
