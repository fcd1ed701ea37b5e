"""Importing it registers the operators; it holds nothing else."""
