"""Clients of a cluster, Ottla's or any that speaks Kafka's protocol: producer, consumer, administration.

`values` has what users write, `errors` what they catch. `core` finds brokers and carries requests; `group` joins
consumer groups; `producing`, `consuming` and `admin` are built on these and know nothing of each other.
"""
