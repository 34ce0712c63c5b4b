"""One broker: composition root, dispatch, handlers, metrics."""
