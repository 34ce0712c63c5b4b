"""The producer: accumulator, partitioners, idempotence and transactions."""
