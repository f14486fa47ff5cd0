"""Contracts on the integer rules, for CrossHair to prove over all paths rather than to try on examples.

``crosshair check --analysis_kind=PEP316 --report_all rollproof.properties.symbolic.routes`` says which are confirmed.
"""
