"""The platforms that a job can run on. `registry` finds them; nothing is imported before it is asked for."""
