"""The gate as pytest tests: the plugin and the suite it runs."""
