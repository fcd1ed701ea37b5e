"""A compile farm of sccache-dist: who it is, whether it answers, and how its machines are set up."""
