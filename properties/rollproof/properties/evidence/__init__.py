"""The generated pages: the rules, and the evidence for each."""
