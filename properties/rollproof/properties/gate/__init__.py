"""Running the properties against an implementation: streams, progress, verdicts, reports, replay."""
