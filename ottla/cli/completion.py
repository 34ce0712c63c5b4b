"""`ottla completion`: what a shell needs to complete commands, and names of the cluster as they are typed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from ottla.cli.output import json_option, print_json

PATIENCE_S: Final = 1.0
"""Whoever presses Tab does not wait longer for a broker."""
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
    if as_json:
        print_json({"shell": shell, "for": WHERE[shell], "script": script})
    else:
        click.echo(f"# {WHERE[shell]}")
        click.echo(script)


def topic_names(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    async def names(bootstrap: str) -> list[str]:
        from ottla.client.admin import Admin

        async with Admin(bootstrap) as admin:
            return [topic.name for topic in await admin.list_topics()]

    return _completed(ctx, names, typed)


def group_names(ctx: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    async def names(bootstrap: str) -> list[str]:
        from ottla.client.admin import Admin

        async with Admin(bootstrap) as admin:
            return [group.group_id for group in await admin.list_groups()]

    return _completed(ctx, names, typed)


def _completed(ctx: click.Context, ask: Callable[[str], Awaitable[list[str]]], typed: str) -> list[CompletionItem]:
    """Nothing, when the cluster does not answer: a shell is no place for an error."""
    from ottla.client.errors import ClientError

    given = ctx.params.get("bootstrap") or os.environ.get("OTTLA_BOOTSTRAP_SERVERS") or "localhost:9092"

    async def soon() -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            return await ask(given)

    try:
        return [CompletionItem(name) for name in asyncio.run(soon()) if name.startswith(typed)]
    except (ClientError, TimeoutError):
        return []
