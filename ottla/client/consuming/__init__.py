"""The consumer: fetch requests, positions, records, and subscriptions."""
