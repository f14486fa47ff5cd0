"""What a user can get wrong."""

from __future__ import annotations


class InputError(ValueError):
    """Something that a user gave cannot be used. The message says what, and what was expected.

    A command that meets it ends with this one line and exit code 2.
    """
