"""Slurm: submitted through submitit, followed by our own eyes."""
