"""The consumer: fetch requests, positions, records, and what a consumer is subscribed to."""
