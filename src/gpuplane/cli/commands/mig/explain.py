"""`gpuplane mig explain`: which cards can hold some MIG devices together, and what beside them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.cli.commands.mig.options import machine
from gpuplane.cli.commands.mig.seen import observe_gpus
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.options import json_option, usage_error
from gpuplane.cli.kit.presenter import print_result
from gpuplane.node.core.partitions.cards import card_of, cards, profiles_of
from gpuplane.node.core.partitions.combinations import Combination, check_names, combine
from gpuplane.node.model.machine import Gpu


class Explained(Value, omit_defaults=False):
    """What `--json` shows. `cards`: those that have such profiles."""

    profiles: tuple[str, ...]
    cards: tuple[Combination, ...]


@click.command()
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE…")
@json_option()
@machine
@state_dir
def command(profiles: tuple[str, ...], as_json: bool, machine: str | None, state_dir: Path) -> None:
    """Show which cards can hold MIG devices of these profiles together, where, and what fits beside them.

    Name a profile as often as you want it: 3g.40gb 1g.10gb 1g.10gb. With --machine: the GPUs of that machine, instead
    of all cards that are known. Exit status 1: none can hold them.
    """
    try:
        check_names(profiles)
    except ValueError as error:
        raise usage_error(f"{error}") from None
    found = tuple(_of_machine(profiles, observe_gpus(machine, state_dir)) if machine is not None else _of_all(profiles))
    lines = [_sentence(each) for each in found] or [f"no GPU here has {' + '.join(dict.fromkeys(profiles))}"]
    print_result(Explained(profiles=profiles, cards=found), lines, as_json=as_json)
    sys.exit(not any(each.is_possible for each in found))


def _of_all(names: tuple[str, ...]) -> Iterator[Combination]:
    for card in cards():
        found = combine(card.name, card.profiles, names, is_verified=card.is_verified)
        if found is not None:
            yield found


def _of_machine(names: tuple[str, ...], gpus: tuple[Gpu, ...]) -> Iterator[Combination]:
    """One for each kind of GPU. What a driver tells is verified."""
    explained_profiles = set()
    for gpu in gpus:
        profiles, card = profiles_of(gpu), card_of(gpu)
        if profiles and profiles not in explained_profiles:
            explained_profiles.add(profiles)
            is_verified = bool(gpu.mig is not None and gpu.mig.profiles) or card is None or card.is_verified
            found = combine(card.name if card is not None else gpu.model, profiles, names, is_verified=is_verified)
            if found is not None:
                yield found


def _sentence(found: Combination) -> Text:
    if not found.is_possible:
        return f"{found.card}: no: {found.reason}"
    places = ", ".join(f"{name} at {start}" for name, start in found.instances)
    beside = " or ".join(f"{count} × {name}" for name, count in found.also_fits.items())
    remark = "" if found.is_verified else " (the places are not verified)"
    return f"{found.card}: yes: {places}{remark}; there is room for {beside or 'nothing'} beside them"
