"""The commands of ``rollproof``, one module each.

A module is called as its command, in underscores, and holds the click command as ``command``. It is imported only when
the command runs or help lists it.
"""
