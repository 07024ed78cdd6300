"""Completion for shells: `sds completion bash` prints a script that completes commands and options."""

from __future__ import annotations

import argparse
from typing import Any

_BASH = """\
# sds: source <(sds completion {shell})
{prologue}_sds() {{
    local path="" word
    for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD - 1))}}"; do
        case "$path $word" in
{steps}
        esac
    done
    case "$path" in
{words}
    esac
}}
complete -o default -F _sds sds
"""


# A plain zsh has no completion until compinit has run.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i -D; }
autoload -U +X bashcompinit && bashcompinit
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to a command line."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description="In ~/.bashrc or ~/.zshrc: source <(sds completion bash), or zsh.",
    )
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(command=lambda shell: _print(commands, shell))


def _print(commands: argparse._SubParsersAction[Any], shell: str) -> int:
    print(script(commands, shell), end="")
    return 0


def script(commands: argparse._SubParsersAction[Any], shell: str) -> str:
    """Return the script of one shell."""
    words = {"": sorted(commands.choices)}
    for name, parser in commands.choices.items():
        _collect(parser, f" {name}", words)
    steps = [path for path in words if path]
    return _BASH.format(
        shell=shell,
        prologue=_ZSH if shell == "zsh" else "",
        steps="\n".join(f'            "{path}") path="{path}" ;;' for path in steps),
        words="\n".join(
            f"""        "{path}") COMPREPLY=($(compgen -W "{" ".join(found)}" -- "${{COMP_WORDS[COMP_CWORD]}}")) ;;"""
            for path, found in words.items()
        ),
    )


def _collect(parser: argparse.ArgumentParser, path: str, words: dict[str, list[str]]) -> None:
    """Add the words that may follow a command, and those of its own commands."""
    words[path] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words[path] += sorted(action.choices)
            for name, below in action.choices.items():
                _collect(below, f"{path} {name}", words)
        elif action.choices and not action.option_strings:
            words[path] += map(str, action.choices)
        words[path] += [option for option in action.option_strings if option.startswith("--")]
