"""Replicas of partitions on this broker: who leads, what is committed, who waits."""
