"""Groups and what they remember: pure machines over the partitions of internal topics."""
