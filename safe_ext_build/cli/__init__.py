"""The command line: one module for each command, each with `add_to` and `run`."""
