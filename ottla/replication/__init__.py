"""Replicas of partitions on this broker: leaders, followers, high watermarks, delayed operations."""
