"""Valid rollouts, drawn as plain data first and then turned into records and bytes."""
