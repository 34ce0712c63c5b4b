"""`make demo`: what a cluster does when a leader is killed, shown and counted."""
