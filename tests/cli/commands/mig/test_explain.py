"""`gpuplane mig explain` and `generate-config`."""

import json

import yaml

from tests.cli.commands.mig.node import mig


def test_cards_are_explained() -> None:
    """Those that have the profiles: whether they hold all of them, where, and what beside."""
    done = mig("explain", "3g.40gb", "1g.10gb", "1g.10gb", "--json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["profiles"]) == (0, ["3g.40gb", "1g.10gb", "1g.10gb"])
    assert {card["card"]: card["is_possible"] for card in document["cards"]} == {"A100 80GB": True, "H100 80GB": True}
    assert document["cards"][0]["instances"] == [["1g.10gb", 0], ["1g.10gb", 1], ["3g.40gb", 4]]
    assert document["cards"][0]["also_fits"]["2g.20gb"] == 1


def test_blackwells_places_are_not_verified() -> None:
    """That is said."""
    card = json.loads(mig("explain", "1g.23gb", "7g.180gb", "--json").stdout)["cards"][0]
    assert (card["is_possible"], card["is_verified"]) == (False, False)


def test_what_no_card_holds_is_the_answer_no() -> None:
    """And what no card knows is a wrong command line."""
    assert mig("explain", "1g.10gb+me", "1g.10gb+me").exit_code == 1
    assert mig("explain", "1g.10gbme").exit_code == 2
    assert mig("explain", "1g.6gb", "--machine", "hgx-h100").exit_code == 1
    assert mig("explain", "1g.10gb", "--machine", "hgx-h100").exit_code == 0
    assert mig("explain").exit_code == 2


def test_configurations_are_generated() -> None:
    """As many of each profile as fit. A machine without MIG has none."""
    document = yaml.safe_load(mig("generate-config", "--machine", "hgx-h100").stdout)
    configs = document["mig-configs"]
    assert configs["all-1g.10gb"] == [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
    assert {"all-disabled", "all-enabled", "all-balanced", "all-1g.10gb.me", "all-7g.80gb"} <= configs.keys()
    assert json.loads(mig("generate-config", "--machine", "hgx-h100", "-o", "json").stdout) == document
    assert mig("generate-config", "--machine", "t4").exit_code == 1
