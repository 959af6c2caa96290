"""The shell's grammar, as far as batch scripts use it."""
