"""One broker: the wiring, the handlers and the housekeeping."""
