"""Shared by the scripts: options, failures in the words of Kafka's tools, topic patterns, tables."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import product, zip_longest
from types import SimpleNamespace
from typing import IO, Any, Final, TypeVar

import click

from ottla.cli.failure import Failure, Misused, TerseErrors
from ottla.cli.kafka_scripts.descriptions import DESCRIPTIONS
from ottla.cli.target import Target, failure_of
from ottla.client.admin import Admin
from ottla.client.core.settings import parse_bootstrap
from ottla.client.errors import BadSetting, ClientError, NotUnderstood, TimedOut, Unreachable
from ottla.config.properties import parse_properties
from ottla.errors import ErrorCode

T = TypeVar("T")
Text = TypeVar("Text", str | None, tuple[str, ...])

KAFKA_VERSION: Final = "4.3.1"
"""The version of Kafka whose options, output and exit status the scripts have."""
NO_CONTROLLERS: Final = "every broker takes administrative requests: use --bootstrap-server"
"""In place of --bootstrap-controller."""
MISSING = "-"
"""A missing value in the tables of Kafka's tools."""


WORDS: Final = {
    ErrorCode.group_id_not_found: "The group id does not exist.",
    ErrorCode.non_empty_group: "The group is not empty.",
    ErrorCode.group_subscribed_to_topic: "Deleting offsets of a topic is forbidden while the consumer group is "
    "actively subscribed to it.",
}
"""Messages of errors that brokers send without a message."""
EXCEPTIONS: Final = {ErrorCode.non_empty_group: "GroupNotEmpty"}
"""Exceptions whose names differ from the error codes."""


class ToolFailure(Failure):
    """Ends a script like Kafka's tools: the plain message, exit status 1."""

    def __init__(self, message: str, *, stdout: bool = False) -> None:
        super().__init__(message)
        self._stdout = stdout

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=not self._stdout)


class ToolComplaint(ToolFailure):
    """An error for which Kafka's tool exits with status 0."""

    exit_code = 0


class InvalidRegex(ToolFailure):
    """An option has an invalid regular expression; each script has its own message."""


class UsageFailure(ToolFailure):
    """Ends a script with the message and the table of its options."""

    def __init__(self, message: str, context: click.Context | None = None) -> None:
        super().__init__(message)
        self._context = context or click.get_current_context()

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{self.message}\n{_option_table(self._context)}", file=file, err=True)


def uncaught(exception: str, message: str) -> ToolFailure:
    """The text that Java prints for an uncaught exception."""
    return ToolFailure(f'Exception in thread "main" {exception}: {message}')


def _option_table(context: click.Context) -> str:
    """In the layout of Kafka's --help: two columns in 80 characters, continuations indented by two."""
    rows = [("Option", "Description"), ("------", "-----------")]
    for param in sorted(context.command.get_params(context), key=lambda each: each.opts):
        assert isinstance(param, click.Option)
        value = "" if param.is_flag else f" <{param.metavar or _kind(param)}>"
        rows.append((f"{', '.join(param.opts)}{value}", param.help or DESCRIPTIONS[param.opts[0].lstrip("-")]))
    left = 39
    lines: list[str] = []
    for option, description in rows:
        names = textwrap.wrap(option, left, subsequent_indent="  ")
        texts = textwrap.wrap(description, 80 - left - 2, subsequent_indent="  ")
        pairs = zip_longest(names, texts, fillvalue="")
        lines += [f"{name:<{left}}  {text}".rstrip() for name, text in pairs]
    return "\n".join(lines)


def _kind(param: click.Option) -> str:
    return "Integer" if isinstance(param.type, Number) else "String"


class Number(click.ParamType[int]):
    """A whole number."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(value)
        except ValueError:
            assert param is not None
            raise click.BadParameter(cannot_parse(value, param.opts[0].lstrip("-")), ctx, param) from None


def cannot_parse(value: str, option: str) -> str:
    return f"Cannot parse argument '{value}' of option {option}"


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(KAFKA_VERSION)
        context.exit()


def _print_help(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        assert isinstance(context.command, Script)
        raise UsageFailure(context.command.about, context)


class Script(TerseErrors):
    """One of Kafka's commands: wrong usage has the messages, streams and exit status of Kafka's tools.

    `about`: first line of --help. `unparsed`: failure for an unknown option or one without a value. `unreadable`:
    failure for an invalid value. Arguments after the options are ignored, as by Kafka's tools.
    """

    def __init__(
        self,
        *args: Any,
        about: str,
        unparsed: Callable[[str, str], Failure] = lambda _, message: ToolFailure(message),
        unreadable: Callable[[str], Failure] = ToolFailure,
        **others: Any,
    ) -> None:
        super().__init__(*args, **others)
        self.add_help_option = False
        self.context_settings = {**self.context_settings, "allow_extra_args": True}
        self.about = about
        self._unparsed = unparsed
        self._unreadable = unreadable
        flag = {"is_flag": True, "expose_value": False, "is_eager": True}
        self.params += [
            click.Option(["--help"], callback=_print_help, help="Print usage information.", **flag),
            click.Option(["--version"], callback=_print_version, help="Display Kafka version.", **flag),
        ]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return super().make_context(info_name, args, parent, obj=tuple(args), **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            message = f"{unknown.option_name.lstrip('-')} is not a recognized option"
            raise self._unparsed("joptsimple.UnrecognizedOptionException", message) from None
        except click.BadOptionUsage as unusable:
            message = f"Option {unusable.option_name.lstrip('-')} requires an argument"
            raise self._unparsed("joptsimple.OptionMissingRequiredArgumentException", message) from None
        except click.BadParameter as bad:
            raise self._unreadable(bad.message) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Every failure has exit status 1, as with Kafka's tools."""
        try:
            return super().invoke(ctx)
        except Failure as failure:
            if failure.exit_code <= 1:
                raise
            failure.show()
            ctx.exit(1)


def arguments() -> tuple[str, ...]:
    """The arguments of the script."""
    given = click.get_current_context().obj
    assert isinstance(given, tuple)
    return given


class ScriptOptions(SimpleNamespace):
    """The options of a script, by name: None, False or () where one was not given."""

    def has(self, option: str) -> bool:
        return getattr(self, option.replace("-", "_")) not in (None, False, ())


def missing_argument(option: str) -> UsageFailure:
    return UsageFailure(f'Missing required argument "[{option}]"')


def refuse_together(
    given: ScriptOptions, options: Iterable[str], others: Iterable[str], *, what: str = "option"
) -> None:
    """None of `options` may be given with one of `others`."""
    for option, other in product(options, others):
        if given.has(option) and given.has(other):
            raise UsageFailure(f'Option "[{option}]" can\'t be used with {what} "[{other}]"')


def pairs_of(texts: Sequence[str]) -> dict[str, str]:
    """Parse `name=value` pairs; a name alone has the value "", as for Kafka's console tools."""
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def apart(one: str, first: Text, other: str, second: Text) -> Text:
    """The value of an option with two names, of which only one may be given."""
    if first and second:
        raise UsageFailure(f"Options --{one} and --{other} cannot be specified together.")
    return first or second


def check_choice(value: str, setting: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ToolFailure(
            f"org.apache.kafka.common.config.ConfigException: Invalid value {value} for configuration {setting}: "
            f"String must be one of: {', '.join(choices)}"
        )


def properties_of(file: str, missing: Failure) -> dict[str, str]:
    """The settings of a properties file; raises `missing` if it cannot be read."""
    try:
        with open(file, encoding="utf-8") as lines:
            return dict(parse_properties(lines.read()))
    except OSError:
        raise missing from None


def target_of(*servers: str | None, settings: tuple[str, ...] = (), file: str | None = None) -> Target:
    """The target cluster; `servers` are the values of the options that name it."""
    bootstrap = next((each for each in servers if each), None)
    if bootstrap is None:
        raise missing_argument("bootstrap-server")
    try:
        parse_bootstrap(bootstrap)
    except ValueError:
        raise ToolFailure(
            "Failed to create new KafkaAdminClient\n"
            f"Caused by: org.apache.kafka.common.config.ConfigException: Invalid url in bootstrap.servers: {bootstrap}"
        ) from None
    given: dict[str, str] = {}
    if file is not None:
        given = properties_of(file, ToolFailure(f"{file}\njava.nio.file.NoSuchFileException: {file}"))
    return Target(bootstrap, given | pairs_of(settings))


def administer(
    target: Target, work: Callable[[Admin], Awaitable[T]], failed: Callable[[ClientError], Failure] | None = None
) -> T:
    """Run `work` with an admin client; `failed` makes the failure in the words of Kafka's tool."""
    try:
        admin = Admin(target.bootstrap, config=target.config())
    except BadSetting as bad:
        raise Misused(str(bad)) from None

    async def session() -> T:
        async with admin:
            return await work(admin)

    try:
        return asyncio.run(session())
    except ClientError as error:
        raise (failed(error) if failed is not None else failure_of([error])) from None


def kafka_message(error: ClientError) -> str:
    """The message that Kafka's own client has for this error: the broker's, or its own for the code."""
    from_broker = not isinstance(error, NotUnderstood) or error.code is ErrorCode.unsupported_version
    if isinstance(error, (Unreachable, TimedOut)) or not from_broker:
        return str(error)  # it names the broker
    return WORDS.get(error.code) or error.said or str(error).partition(": ")[2] or str(error)


def kafka_exception(error: ClientError) -> str:
    """Exception name and message, as Java prints them."""
    return f"{exception_name(error.code)}: {kafka_message(error)}"


def exception_name(code: ErrorCode) -> str:
    camel = code.name.removesuffix("_exception").title().replace("_", "")
    return f"org.apache.kafka.common.errors.{EXCEPTIONS.get(code, camel)}Exception"


def one_action(given: ScriptOptions, actions: Sequence[str], last: str = ", ") -> str:
    """The action that is given; a command takes exactly one. `last` stands before the last name of the list."""
    chosen = [name for name in actions if given.has(name)]
    if len(chosen) != 1:
        *names, end = (f"--{name}" for name in actions)
        raise UsageFailure(f"Command must include exactly one action: {', '.join(names)}{last}{end}")
    return chosen[0]


def include_list(pattern: str) -> Callable[[str], bool]:
    """Kafka's IncludeList: a regular expression for whole names, in which a comma separates alternatives."""
    text = pattern.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        compiled = re.compile(text)
    except re.error:
        raise InvalidRegex(f"{pattern} is an invalid regex.") from None
    return lambda name: compiled.fullmatch(name) is not None


def matched(pattern: str | None) -> Callable[[str], bool]:
    return include_list(pattern) if pattern else lambda _: True


def joined(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def row(widths: Sequence[int], cells: Sequence[object]) -> str:
    """`%-10s %-15s ...` of Java: left-aligned, one blank between; the last column is as wide as it is (width 0)."""
    return " ".join(f"{cell!s:<{width}}" if width else str(cell) for width, cell in zip(widths, cells, strict=True))
