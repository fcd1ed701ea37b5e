"""What a build has made: its extension modules are read, loaded, and judged."""
