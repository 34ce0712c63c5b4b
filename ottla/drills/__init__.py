"""Drills: lessons on a small cluster that is broken on purpose; every outcome is checked."""
