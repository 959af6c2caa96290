"""Real services for the tests: a private Slurm cluster that one command starts and stops."""
