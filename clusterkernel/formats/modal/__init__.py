"""Modal apps."""
