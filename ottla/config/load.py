"""Loads the broker configuration: from flags, then the environment, then a properties file.

All problems are reported together, and a value that may be a secret is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ottla.config.broker_config import BrokerConfig, Given
from ottla.config.broker_settings import ALIASES, BROKER_SETTINGS
from ottla.config.inert_settings import (
    INERT_DYNAMIC,
    INERT_NAMES,
    SECURITY_NAMES,
    UNSUPPORTED,
    is_inert,
    is_security,
    refusal,
)
from ottla.config.listeners import with_address
from ottla.config.named_options import did_you_mean
from ottla.config.properties import escape_value, parse_properties
from ottla.config.setting import BadConfig, ConfigSource, Setting, is_sensitive, text_of

ENVIRONMENT_PREFIX: Final = "OTTLA_"
CUTOFF: Final = 0.7
"""Many settings have similar names: only a very similar one is suggested."""

# Variables that are ours and no settings: of the command line, of the tests and the benchmark, and those that
# Kubernetes sets in every container when a service is called "ottla" or "ottla-...".
_RESERVED: Final = (
    r"OTTLA_(BOOTSTRAP_SERVERS|CONFIG|LOG_LEVEL|LOG_FORMAT|ZOOKEEPER_JARS|(TEST|BENCH|DEMO|CONSOLE)_\w+"
    r"|(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|(\w+_)?PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
_MEANT: Final = {"ID": "broker.id", "HOST": "listeners", "DATA": "log.dirs", "DATA_DIR": "log.dirs"}


def load_broker_config(
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    host: str | None = None,
    port: int | None = None,
    defaults: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The configuration of a broker, or BadConfig with everything that is wrong.

    `host` and `port` change the address of the only listener. `defaults` replace the usual ones.
    """
    gathered = _Gathered()
    problems = gathered.problems
    layers = (
        (ConfigSource.DEFAULT, dict(defaults or {})),
        (ConfigSource.FILE, _read_file(file, problems) if file is not None else {}),
        (ConfigSource.ENVIRONMENT, _read_environment(environment or {}, problems)),
        (ConfigSource.FLAG, dict(flags or {})),
    )
    for source, texts in layers:
        where = f" in {file}" if source is ConfigSource.FILE else ""
        for name, text in _without_aliases(texts, where, problems):
            gathered.take(name, text, source, where)
    if host is not None or port is not None:
        gathered.take_address(host, port)
    try:
        config = BrokerConfig(gathered.given, inert=gathered.inert)
    except BadConfig as bad:
        raise BadConfig([*problems, *bad.problems]) from None
    if problems:
        raise BadConfig(problems)
    return config


def environment_name(name: str) -> str:
    """The variable that sets a setting: advertised.listeners is OTTLA_ADVERTISED_LISTENERS."""
    return ENVIRONMENT_PREFIX + name.removeprefix("ottla.").replace(".", "_").upper()


def shown_config(config: BrokerConfig) -> dict[str, str | None]:
    """The effective configuration, by Kafka's names; secrets are hidden."""
    shown = {name: text_of(config.get(name)) for name in sorted(BROKER_SETTINGS)}
    hidden = [name for name, text in shown.items() if BROKER_SETTINGS[name].sensitive and text is not None]
    return shown | dict.fromkeys(hidden, "[hidden]")


def print_config(config: BrokerConfig) -> str:
    """The effective configuration as a properties file, grouped by source; secrets are hidden."""
    sections: dict[ConfigSource, list[str]] = {}
    for name in sorted(BROKER_SETTINGS):
        value = text_of(config.get(name))
        sensitive = BROKER_SETTINGS[name].sensitive
        line = f"#{name}=" if value is None else f"{name}={'[hidden]' if sensitive else escape_value(value)}"
        sections.setdefault(config.source(name), []).append(line)
    lines: list[str] = []
    for source in sorted(sections):
        lines += [f"# from {source.label}", *sections[source], ""]
    if config.inert:
        lines += ["# accepted, has no effect", *(f"#{name}" for name in sorted(config.inert)), ""]
    return "\n".join(lines).rstrip("\n")


def _read_file(path: str, problems: list[str]) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        problems.append(f"cannot read {path}: {error.strerror}")
        return {}
    try:
        return parse_properties(data.decode("utf-8"))
    except UnicodeDecodeError:
        return parse_properties(data.decode("latin-1"))  # the encoding of properties files in Java


def _read_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    ours = sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX))
    if not ours:
        return {}
    names = {environment_name(name): name for name in _known()}
    texts: dict[str, str] = {}
    for variable in ours:
        name = names.get(variable) or _inert_family(variable)
        if name is not None:
            texts[name] = environment[variable]
        elif not re.fullmatch(_RESERVED, variable):
            meant = _MEANT.get(variable.removeprefix(ENVIRONMENT_PREFIX))
            near = did_you_mean(variable, names, cutoff=CUTOFF)
            hint = f"; did you mean {environment_name(meant)}?" if meant else near
            problems.append(f"{variable}: no setting has this name{hint}")
    return texts


def _known() -> tuple[str, ...]:
    return (*INERT_NAMES, *SECURITY_NAMES, *UNSUPPORTED, *ALIASES, *BROKER_SETTINGS)


def _inert_family(variable: str) -> str | None:
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
    return name if is_inert(name) or is_security(name) else None


def _without_aliases(texts: Mapping[str, str], where: str, problems: list[str]) -> list[tuple[str, str]]:
    """node.id is broker.id; both may be given if they agree."""
    for alias, name in ALIASES.items():
        if alias in texts and texts.get(name, texts[alias]).strip() != texts[alias].strip():
            problems.append(f"{name} and {alias} differ{where}; they are the same setting, so set one of them")
    return [(ALIASES.get(name, name), text) for name, text in texts.items() if ALIASES.get(name) not in texts]


class _Gathered:
    """The values so far: weaker sources first, stronger ones replace them."""

    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        self.inert: dict[str, str] = {}
        self.problems: list[str] = []

    def take(self, name: str, text: str, source: ConfigSource, where: str) -> None:
        setting = BROKER_SETTINGS.get(name)
        if setting is not None:
            self._take_known(setting, text, source, where)
            return
        why = refusal(name, text)
        if why is not None:
            self.problems.append(f"{name}{where} cannot be used: {why}")
        elif name in INERT_DYNAMIC and (invalid := INERT_DYNAMIC[name].refusal(text)) is not None:
            self.problems.append(f"{invalid}{where}")
        elif is_inert(name) or name in UNSUPPORTED or is_security(name):
            self.inert[name] = text
        else:
            self.problems.append(f"{name}: no setting has this name{where}{_meant(name)}")

    def _take_known(self, setting: Setting, text: str, source: ConfigSource, where: str) -> None:
        if setting.default is None and not text.strip():
            self.given.pop(setting.name, None)  # as in Kafka: empty means unset, where that is possible
            return
        try:
            self.given[setting.name] = Given(setting.parse(text), source)
        except ValueError as problem:
            shown = "this value" if setting.sensitive else repr(text)
            self.problems.append(f"{setting.name}: {shown}{where} cannot be used: it must be {problem}")

    def take_address(self, host: str | None, port: int | None) -> None:
        """--host and --port, which change the only listener."""
        listeners = self._so_far("listeners")
        changed = with_address(listeners, self._so_far("controller.listener.names"), host, port)
        if changed is None:
            self.problems.append(
                "--host and --port set the address of one listener, and listeners has several: use --set listeners=..."
            )
        else:
            self.given["listeners"] = Given(changed, ConfigSource.FLAG)

    def _so_far(self, name: str) -> tuple[str, ...]:
        value = self.given[name].value if name in self.given else BROKER_SETTINGS[name].default
        assert isinstance(value, tuple)
        return value


def _meant(name: str) -> str:
    from ottla.config.topic_config import TOPIC_SETTINGS

    topic_setting = TOPIC_SETTINGS.get(name)
    if topic_setting is not None and topic_setting.synonyms:
        return f"; it is a setting of topics, whose default for all topics is {topic_setting.synonyms[0][0]}"
    return "" if is_sensitive(name) else did_you_mean(name, _known(), cutoff=CUTOFF)
