"""Attack a running service on this machine and print what it suffered: `python -m scripts.attack --all …`."""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiohttp

from scripts.attack.attacks import ATTACKS, Caller, Target


async def run(options: argparse.Namespace) -> int:
    """Run the attacks one after the other; return 1 if one of them stalled or filled the service."""
    connector = aiohttp.TCPConnector(limit=0)
    failed = False
    print(f"{'attack':<5} {'stall':>8} {'growth':>8}  what")
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(300)) as session:
        for name in ATTACKS if options.all else options.names:
            title, attack = ATTACKS[name]
            attacker, other = (Caller(session, options.url, token) for token in (options.token, options.other_token))
            target = Target(options.url, options.pid, attacker, other, options.scale)
            await attack(target)
            assert target.probe is not None
            stall, growth = target.probe.stall, target.probe.growth
            failed |= stall > options.max_stall or growth > options.max_growth * 2**20
            print(f"{name:<5} {stall * 1000:>5.0f} ms {growth / 2**20:>5.0f} MB  {title}; {target.facts}", flush=True)
    return int(failed)


def main() -> int:
    """Read the command line and attack."""
    parser = argparse.ArgumentParser(prog="python -m scripts.attack", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *ATTACKS], help="which attacks")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the service, on this machine")
    parser.add_argument("--pid", type=int, required=True, help="process of the service")
    parser.add_argument("--token", required=True, help="of the tenant that attacks: read, write, delete")
    parser.add_argument("--other-token", required=True, help="of another tenant: read, write")
    parser.add_argument("--scale", type=float, default=1.0, help="1: the sizes that were found to work once")
    parser.add_argument("--max-stall", type=float, default=0.1, help="seconds")
    parser.add_argument("--max-growth", type=float, default=100, help="MB")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
