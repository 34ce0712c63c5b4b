"""Clients of a cluster, Ottla's or any that speaks Kafka's protocol: producer, consumer, administration."""
