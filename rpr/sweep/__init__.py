"""Sweeps: from a file to jobs, to a launcher, to the status of each job."""
