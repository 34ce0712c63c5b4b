"""The command line: one file for each noun, loaded only when it is used."""
