"""Platform files from a `JobSpec`, and back."""
