"""Compiler caches: ccache and sccache before a compiler, behind J."""
