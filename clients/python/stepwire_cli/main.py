"""Joins the commands to one program.

Knows nothing about what the commands do: each has a file of its own.
"""

import typer

from stepwire_cli.bench.command import run_bench
from stepwire_cli.bench.flags import BenchFlags
from stepwire_cli.chat import ChatFlags, run_chat
from stepwire_cli.flags import command_of
from stepwire_cli.generate import GenerateFlags, run_generate
from stepwire_cli.serve import run_serve
from stepwire_cli.serve_flags import ServeFlags
from stepwire_cli.state import StateFlags, run_state
from stepwire_cli.token import TokenFlags, run_token

app = typer.Typer(
    help="Stepwire, an LLM inference server: start it, ask it, look at it, measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(command_of(ServeFlags, run_serve))
app.command("generate")(command_of(GenerateFlags, run_generate))
app.command("chat")(command_of(ChatFlags, run_chat))
app.command("state")(command_of(StateFlags, run_state))
app.command("token")(command_of(TokenFlags, run_token))
app.command("bench")(command_of(BenchFlags, run_bench))
