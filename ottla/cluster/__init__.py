"""Cluster metadata: the store that holds it, the image that brokers read, the controller that changes it."""
