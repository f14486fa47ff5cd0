"""Requests and answers as lines of JSON: for implementations in any language, behind a pipe or reading vectors."""
