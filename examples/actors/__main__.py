"""`python -m examples.actors [directory]`: speaks before anything large is imported, then plays `demo`."""

from __future__ import annotations

import sys

from examples.actors.voice import Voice


def main() -> None:
    with Voice() as voice:
        voice.say("Actors from a database, through topics, into a table and files: a broker, a PostgreSQL, Spark.")
        with voice.during("loading the drivers"):
            from examples.actors import demo
        demo.run(voice, sys.argv[1] if len(sys.argv) > 1 else "demo-data/actors")


if __name__ == "__main__":
    main()
