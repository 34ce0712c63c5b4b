"""`python -m ottla.cli.kafka_scripts NAME ...`."""

from ottla.cli.kafka_scripts import main

main()
