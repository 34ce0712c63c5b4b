"""Drills: something breaks in a small cluster on purpose, told in plain words, and every outcome is checked."""
