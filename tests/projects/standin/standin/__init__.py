"""Nothing but objects."""
