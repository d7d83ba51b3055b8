"""One HTML file that needs nothing else."""
