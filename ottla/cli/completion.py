"""`ottla completion`: shell completion of commands, and of topics and groups of the cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from ottla.cli.output import answer, json_option

if TYPE_CHECKING:
    from ottla.client.admin import Admin

PATIENCE_S: Final = 1.0
"""How long Tab waits for a broker."""
WHERE: Final = {
    "bash": '~/.bashrc: eval "$(ottla completion bash)"',
    "zsh": '~/.zshrc: eval "$(ottla completion zsh)"',
    "fish": "~/.config/fish/completions/ottla.fish: ottla completion fish | source",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(WHERE)))
@json_option
def command(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell, for its start-up file.

    \b
    Example:
      eval "$(ottla completion bash)"
    """
    from ottla.cli.main import cli

    chosen = get_completion_class(shell)
    assert chosen is not None
    script = chosen(cli, {}, "ottla", "_OTTLA_COMPLETE").source()
    answer(as_json, {"shell": shell, "for": WHERE[shell], "script": script}, f"# {WHERE[shell]}\n{script}")


def topic_names(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    async def names(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.list_topics()]

    return _completed(ctx, names, typed)


def group_names(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    async def names(admin: Admin) -> list[str]:
        return [group.group_id for group in await admin.list_groups()]

    return _completed(ctx, names, typed)


def _completed(ctx: click.Context, names: Callable[[Admin], Awaitable[list[str]]], typed: str) -> list[CompletionItem]:
    """Names that begin as typed; none if the cluster does not answer, because a shell cannot show the error."""
    from ottla.client.admin import Admin
    from ottla.client.errors import ClientError

    given = ctx.params.get("bootstrap") or os.environ.get("OTTLA_BOOTSTRAP_SERVERS") or "localhost:9092"

    async def soon() -> list[str]:
        async with asyncio.timeout(PATIENCE_S), Admin(given) as admin:
            return await names(admin)

    try:
        return [CompletionItem(name) for name in asyncio.run(soon()) if name.startswith(typed)]
    except (ClientError, TimeoutError):
        return []
