"""`ottla serve`: load the configuration and run a broker."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from ottla import logs
from ottla.cli.failure import Failure, Misused, split_pair
from ottla.cli.output import json_option, print_json, print_json_line
from ottla.config import BadConfig, BrokerConfig, load_broker_config, print_config, shown_config
from ottla.config.listeners import Listener
from ottla.config.setting import ConfigSource
from ottla.errors import Fault

log = logging.getLogger("ottla.serve")

COPIES = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)
"""Settings of internal topics that need several brokers; 1 for a broker with its own store, which stays alone."""


class Serve(click.Command):
    """Logs wrong usage as JSON if the log format is JSON."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        typed = list(args)  # parsing consumes them
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as misused:
            if not _asks_for_json(typed):
                raise
            logs.set_up(form="json")
            log.critical("%s", misused.format_message())
            sys.exit(misused.exit_code)


def _asks_for_json(typed: list[str]) -> bool:
    """Whether arguments that cannot be parsed ask for JSON."""
    _, named, after = " ".join(typed).replace("=", " ").rpartition("--log-format ")
    if named:
        return after.split(" ", 1)[0] == "json"
    return os.environ.get("OTTLA_LOG_FORMAT") == "json" or "--json" in typed


@click.command("serve", cls=Serve)
@click.option("--id", "broker_id", type=int, metavar="ID", help="Broker id (broker.id).  [default: 1]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 picks one.  [default: 9092]",
)
@click.option("--data", metavar="DIR", help="Data directory (log.dirs).  [default: ottla-data]")
@click.option("--store", metavar="STORE", help="Metadata store (ottla.store).  [default: embedded:DIR/store.db]")
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port of /metrics, /healthz and /readyz (ottla.metrics.port).  [default: none]",
)
@click.option("--config", "file", metavar="FILE", envvar="OTTLA_CONFIG", help="A server.properties file.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="Any setting; repeatable.")
@click.option("--print-config", "only_print", is_flag=True, help="Print the effective configuration and exit.")
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    envvar="OTTLA_LOG_FORMAT",
    help="Of the log, on standard error.  [default: text; json with --json]",
)
@click.option(
    "--log-level", type=click.Choice(logs.LEVELS), default="info", envvar="OTTLA_LOG_LEVEL", show_default=True
)
@json_option
def command(
    broker_id: int | None,
    host: str | None,
    port: int | None,
    data: str | None,
    store: str | None,
    metrics_port: int | None,
    file: str | None,
    settings: tuple[str, ...],
    only_print: bool,
    log_format: str | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings have Kafka's names. An option overrides an environment variable (OTTLA_ADVERTISED_LISTENERS for
    advertised.listeners), and that overrides the file.

    \b
    Example:
      ottla serve --port 9092 --data ottla-data --set num.partitions=3
    """
    form = log_format or ("json" if as_json else "text")
    named = {
        "broker.id": broker_id,
        "log.dirs": data,
        "ottla.store": store,
        "ottla.metrics.port": metrics_port,
    }
    flags = {name: str(value) for name, value in named.items() if value is not None}
    try:
        flags = dict(split_pair(each, "--set") for each in settings) | flags
        _serve(file, flags, host, port, only_print=only_print, form=form, level=log_level, as_json=as_json)
    except click.ClickException as failure:
        if form != "json":
            raise
        hint = getattr(failure, "hint", None)
        logs.set_up(log_level, form, broker=broker_id)
        log.critical("%s", failure.message if hint is None else f"{failure.message} {hint}")
        sys.exit(failure.exit_code)


def _serve(
    file: str | None,
    flags: dict[str, str],
    host: str | None,
    port: int | None,
    *,
    only_print: bool,
    form: str,
    level: str,
    as_json: bool,
) -> None:
    try:
        config = load_broker_config(file=file, environment=os.environ, flags=flags, host=host, port=port)
        if config.source("ottla.store") is ConfigSource.DEFAULT:
            alone = dict.fromkeys(COPIES, "1")
            config = load_broker_config(
                file=file, environment=os.environ, flags=flags, host=host, port=port, defaults=alone
            )
    except BadConfig as bad:
        raise Misused(_sentence(bad)) from None
    _check_store(config.ottla_store)
    if only_print:
        if as_json:
            print_json(shown_config(config))
        else:
            click.echo(print_config(config))
        return
    logs.set_up(level, form, broker=config.broker_id)
    if form == "json":
        logs.take_all()
    _announce(config)
    sys.exit(_run(config, form, as_json=as_json or form == "json"))


def _check_store(url: str) -> None:
    """Fail before the start if the URL of the store is invalid: a retry would not help."""
    kind, _, where = url.partition(":")
    if kind == "zookeeper":
        from ottla.cluster.zookeeper_options import Address

        try:
            Address.parse(where)
        except Fault as fault:
            raise Misused(f"ottla.store: {fault}") from None
    elif kind != "embedded":
        raise Misused(f"ottla.store: {url!r} is not a store: use embedded:PATH or zookeeper:HOST:PORT[,...][/chroot]")


def _run(config: BrokerConfig, form: str, *, as_json: bool) -> int:
    from ottla.broker.main import run

    def ready(listeners: list[Listener]) -> None:
        """Print the ready line, which scripts and process managers wait for."""
        addresses = [listener.address for listener in listeners]
        if as_json:
            said = f"broker {config.broker_id} ready on {', '.join(addresses)}"
            event = logs.event(logging.INFO, log.name, said)
            print_json_line({"broker": config.broker_id, "ready": addresses} | event)
        else:
            click.echo(f"ottla: broker {config.broker_id} ready on {', '.join(addresses)}")

    try:
        return run(config, ready)
    except Fault as fault:
        if form == "json":
            log.critical("%s", fault)
            return Failure.exit_code
        raise Failure(str(fault)) from None


def _sentence(bad: BadConfig) -> str:
    if len(bad.problems) == 1:
        return bad.problems[0]
    return "\n  ".join((f"the configuration has {len(bad.problems)} errors:", *bad.problems))


def _announce(config: BrokerConfig) -> None:
    """Log what an operator should know about this configuration."""
    if config.inert:
        log.info("settings without effect: %s", ", ".join(sorted(config.inert)))
    ensemble = config.inert.get("zookeeper.connect")
    if ensemble and config.source("ottla.store") is ConfigSource.DEFAULT:
        log.warning(
            "zookeeper.connect has no effect: this broker is a cluster of its own; ottla.store=zookeeper:%s uses the "
            "ensemble",
            ensemble.strip(),
        )
    for listener in config.endpoints:
        if (listener.advertised_host, listener.advertised_port) != (listener.host, listener.port):
            log.info("listener %s is advertised as %s", listener.name, listener.advertised_address)
    exposed = [listener.address for listener in config.endpoints if listener.beyond_loopback]
    if exposed:
        log.warning(
            "listening beyond this machine (%s) without authentication: every client that connects can read and write "
            "everything",
            ", ".join(exposed),
        )
