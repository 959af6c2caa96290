"""sbatch scripts, as the real sbatch reads them."""
