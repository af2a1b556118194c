"""The commands `equipoise keys ...`."""

from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from equipoise.cli.console import Json, say

keys = App(name="keys", help="Make a silo's keys, and show the public ones.")


@keys.command(name="new")
def keys_new(
    name: str,
    /,
    *,
    folder: Annotated[Path, Parameter(help="where the two files go")] = Path(),
    json: Json = False,
) -> None:
    """Make the keys of a silo, in two files that are never overwritten: NAME.key, which is private
    and can be read by you alone, and NAME.pub, a small text for whoever proposes the agreement and
    whoever runs the link.

    The node key (ECDSA P-384) says to the link who the silo is; the mask key (X25519) hides its
    messages under secure aggregation. Compare NAME.pub over a channel you trust, such as the
    telephone: who swaps it takes the silo's place.

    Example: equipoise keys new clinic-a
    """
    from equipoise.fleets.keys import PrivateKeys, write_keys

    made = PrivateKeys.new(name)
    private, public = write_keys(made, folder)
    if json:
        print(dumps({**made.public()._asdict(), "private": str(private), "public": str(public)}))
    else:
        print(made.public().text(), end="")
        say(f"private keys in {private}: keep them; public keys in {public}: give them away")


@keys.command(name="show")
def keys_show(file: Path, /, *, json: Json = False) -> None:
    """Show the public keys in a .pub file, or those that belong to a .key file. Nothing private is
    printed."""
    from equipoise.fleets.keys import read_private, read_public

    public = read_private(file).public() if file.suffix == ".key" else read_public(file)
    print(dumps(public._asdict()) if json else public.text(), end="\n" if json else "")
