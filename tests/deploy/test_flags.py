"""The manifests and the agent's command line mean the same flags."""

import re
from pathlib import Path

import pytest
import yaml

from gpuplane.cli.commands.agent import main as agent

DAEMONSET = Path(__file__).parents[2] / "deploy/base/daemonset.yaml"


def test_the_agent_knows_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Every flag of the manifests is one that `gpuplane agent --help` shows."""
    [container] = yaml.safe_load(DAEMONSET.read_text())["spec"]["template"]["spec"]["containers"]
    with pytest.raises(SystemExit) as ended:
        agent.main(["--help"])

    assert ended.value.code == 0
    assert {each.partition("=")[0] for each in container["args"]} <= set(
        re.findall(r"--[a-z-]+", capsys.readouterr().out)
    )
