"""Test vectors in files: export, the files themselves, and verification."""
